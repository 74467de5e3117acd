"""Columns of Arrow views, as types that every kernel of Arrow takes.

Writers of the arrow-rs family record view types in the file, and Arrow decodes what is recorded;
polars exports text as views. Arrow has no kernel that filters or takes views.
"""

from __future__ import annotations

from functools import cache

import pyarrow as pa

_PLAIN = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


def without_views(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows with views as plain text and bytes, at every depth."""
    types = [_plain(each) for each in rows.schema.types]
    if types == rows.schema.types:
        return rows
    fields = [field.with_type(kind) for field, kind in zip(rows.schema, types, strict=True)]
    return rows.cast(pa.schema(fields, rows.schema.metadata))


@cache
def _plain(data_type: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_struct(data_type):
        return pa.struct([_plain_field(field) for field in data_type])
    if types.is_map(data_type):
        key, item = _plain_field(data_type.key_field), _plain_field(data_type.item_field)
        return pa.map_(key, item, data_type.keys_sorted)
    if types.is_list(data_type):
        return pa.list_(_plain_field(data_type.value_field))
    if types.is_fixed_size_list(data_type):
        return pa.list_(_plain_field(data_type.value_field), data_type.list_size)
    if types.is_large_list(data_type):
        return pa.large_list(_plain_field(data_type.value_field))
    return _PLAIN.get(data_type, data_type)


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(_plain(field.type))
