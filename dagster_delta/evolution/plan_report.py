"""Changes of schema, protocol and properties for people who decide about them.

Columns are matched by id where both schemas have ids, else by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from dagster_delta.evolution.column_paths import ColumnPath, dotted
from dagster_delta.evolution.programs import program_lines
from dagster_delta.evolution.required_protocol import new_features
from dagster_delta.protocol.features.column_mapping import PHYSICAL_NAME_KEY, field_id
from dagster_delta.protocol.features.column_values import DEFAULT_KEY
from dagster_delta.protocol.features.registry import find_feature
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import (
    DataType,
    StructField,
    StructType,
    fold_name,
    is_same_kind,
    paired_fields,
)

ENABLE_FEATURES = "pass enable_features=True"
"""The Python option that turns on the table features for a change."""


class MissingSwitch(msgspec.Struct, frozen=True):
    """A switch that is off and that a change needs."""

    name: str
    """Table feature, table property or option: `columnMapping`."""
    remedy: str
    """How to turn it on, as an imperative, with Python options."""


def configuration_lines(before: TableConfiguration, after: TableConfiguration) -> Iterator[str]:
    """New features of the table, what they mean for other programs, and changes of the
    properties, as list items.
    """
    yield from map(_describe_feature, new_features(before, after))
    yield from program_lines(before, after)
    yield from _diff_properties(before.metadata.configuration, after.metadata.configuration)


def _describe_feature(name: str) -> str:
    row = find_feature(name)
    users = "readers and writers" if row is None or row.is_reader_feature else "writers"
    return f"- new table feature {code_span(name)}: other {users} have to support it"


def missing_switch_lines(switches: Iterable[MissingSwitch]) -> Iterator[str]:
    """The switches that block a planned change, as list items."""
    for switch in switches:
        name = code_span(switch.name)
        yield f"- **off now**: {name}, without which this is refused; {switch.remedy}"


def _diff_properties(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) == after.get(key):
            continue
        if key in after:
            yield f"- property {code_span(f'{key} = {after[key]}')}"
        else:
            yield f"- property {code_span(key)} unset"


def schema_lines(before: StructType, after: StructType) -> Iterator[str]:
    """The differences of two schemas as a block; nothing if there are none."""
    if lines := compare_schemas(before, after).lines:
        yield from ("", "```diff", *lines, "```")


def code_span(text: str) -> str:
    """Text as code."""
    return f"`{text.replace('`', '')}`" if "`" in text else f"`{text}`"


def table_cell(text: str) -> str:
    """Text escaped for a table cell."""
    return text.replace("|", "\\|").replace("\n", " ")


# Differences of two schemas


class SchemaChanges(msgspec.Struct, frozen=True):
    """The differences, one line each: `+` added, `-` dropped, `~` changed."""

    added: tuple[ColumnPath, ...]
    """Paths of added columns, in the later schema."""
    dropped: tuple[ColumnPath, ...]
    """Paths of dropped columns, in the earlier schema."""
    changed: tuple[ColumnPath, ...]
    """Paths of columns with another name, type or comment, in the earlier schema."""
    lines: tuple[str, ...]


class _Line(NamedTuple):
    sign: str
    path: ColumnPath
    text: str


def compare_schemas(before: StructType, after: StructType) -> SchemaChanges:
    """The differences from an earlier schema to a later one."""
    found = list(_lines_of(before, after))
    # One column may have several changes.
    added, dropped, changed = (
        tuple(dict.fromkeys(line.path for line in found if line.sign == sign)) for sign in "+-~"
    )
    lines = tuple(f"{line.sign} {dotted(line.path)}{line.text}" for line in found)
    return SchemaChanges(added, dropped, changed, lines)


def _lines_of(before: StructType, after: StructType) -> Iterator[_Line]:
    by_id = all(field_id(field) is not None for field in (*before, *after))

    def key(field: StructField) -> object:
        return field_id(field) if by_id else fold_name(field.name)

    def new_key(field: StructField) -> object:
        # If mapping was turned on in between, the old name is now the physical name.
        name = str(field.metadata.get(PHYSICAL_NAME_KEY, field.name))
        return field_id(field) if by_id else fold_name(name)

    def moves(old: DataType, new: DataType, path: ColumnPath) -> Iterator[_Line]:
        if isinstance(old, StructType) and isinstance(new, StructType):
            order, keys = [*map(key, old)], [*map(new_key, new)]
            kept = {*order}.intersection(keys)
            if [at for at in order if at in kept] != [at for at in keys if at in kept]:
                yield _Line("~", path, f": in the order {', '.join(new.names)}")

    for path, old, new in paired_fields(before, after, key, new_key):
        if new is None and old is not None:
            yield _Line("-", path, f": {old.data_type}")
        elif old is None and new is not None:
            default = new.metadata.get(DEFAULT_KEY)
            yield _Line("+", path, f": {describe_field(new, default)}")
        elif old is not None and new is not None:
            yield from _diff_fields(old, new, path)
            yield from moves(old.data_type, new.data_type, path)
    yield from moves(before, after, ("columns",))


def describe_field(field: StructField, default: object) -> str:
    """Type, nullability and default of a field for people."""
    text = str(field.data_type) + ("" if field.nullable else " NOT NULL")
    return text if default is None else f"{text} DEFAULT {default}"


def _diff_fields(old: StructField, new: StructField, path: ColumnPath) -> Iterator[_Line]:
    if old.name != new.name:
        yield _Line("~", path, f": renamed to {dotted((new.name,))}")
    if old.nullable != new.nullable:
        yield _Line("~", path, ": may be null" if new.nullable else ": NOT NULL")
    for metadata_key, what in ((DEFAULT_KEY, "default"), ("comment", "comment")):
        before, after = old.metadata.get(metadata_key), new.metadata.get(metadata_key)
        if before != after:
            yield _Line("~", path, f": {what} {after}" if after is not None else f": no {what}")
    if not is_same_kind(old.data_type, new.data_type) and old.data_type != new.data_type:
        yield _Line("~", path, f": {old.data_type} → {new.data_type}")
