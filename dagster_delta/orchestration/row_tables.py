"""A few rows of a table, and what the log knows of the values of each column, as tables in the
Dagster UI, with masked columns.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from dagster import MetadataValue, TableColumn, TableMetadataValue, TableRecord, TableSchema

import dagster_delta.arrow_compute as pc
from dagster_delta.errors import DeltaError, InvalidArgument
from dagster_delta.protocol.schema import StructType, fold_name
from dagster_delta.python_values import python_rows, python_value
from dagster_delta.table.read.log_facts import column_bounds
from dagster_delta.table.read.snapshot import Snapshot

Row: TypeAlias = Mapping[str, Any]
"""Values by column."""

_SCHEMA = TableSchema(
    [TableColumn("column"), TableColumn("min"), TableColumn("max"), TableColumn("nulls", "integer")]
)

MAX_COLUMNS = 50
"""Maximum number of columns shown."""

_MAX_CHARACTERS = 100
_MASK = "•••"
_EXACT_IN_A_BROWSER = 2**53


def check_masked_columns(masked: Collection[str], schema: StructType) -> None:
    """Refuse a masked column that does not exist: a misspelled name would show its values."""
    unknown = [name for name in masked if schema.get(name) is None]
    if unknown:
        raise InvalidArgument(
            f"masked_columns names {', '.join(unknown)}, and the table has no such column, so that "
            f"no rows are shown; its columns are {', '.join(schema.names)}",
            column=unknown[0],
        )


@contextmanager
def hidden_examples(masked: Collection[str]) -> Iterator[None]:
    """Raises errors without their examples of rows if columns are masked: they are text, in which
    single columns cannot be masked. Errors of other libraries behind ours are left out too.
    """
    try:
        yield
    except Exception as error:
        if masked:
            _hide_examples(error)
        raise


def _hide_examples(error: BaseException) -> None:
    found: BaseException | None = error
    while found is not None:
        inner = found.__cause__ or found.__context__
        if isinstance(found, DeltaError):
            if found.examples:
                found.examples = ("(not shown, as the asset has masked_columns)",)
            if not isinstance(inner, DeltaError):
                # The messages of other libraries name values too.
                found.__cause__ = found.__context__ = inner = None
        found = inner


def first_rows(batches: Iterable[Any], count: int) -> list[Row]:
    """The first rows of record batches, at most `count`."""
    found: list[Row] = []
    for batch in batches:
        found += python_rows(batch.slice(0, count - len(found)))
        if len(found) >= count:
            break
    return found


def row_table(rows: Sequence[Row], masked: Collection[str]) -> TableMetadataValue:
    """Rows with the same columns, at least one, as a value for the UI: at most `MAX_COLUMNS`
    columns, with short texts. Masked values are hidden; nulls remain.
    """
    hidden = {fold_name(name) for name in masked}
    names = list(rows[0])[:MAX_COLUMNS]
    records = [
        TableRecord(
            {name: shown_value(row[name], masked=fold_name(name) in hidden) for name in names}
        )
        for row in rows
    ]
    return MetadataValue.table(records)


def shown_value(value: Any, *, masked: bool = False) -> Any:  # noqa: ANN401
    """The value as JSON that a browser shows exactly, or as a short text; hidden if masked."""
    if masked and value is not None:
        return _MASK
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) <= _EXACT_IN_A_BROWSER:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, bytes):
        text = value.hex()
    elif isinstance(value, dict | list | tuple):
        text = json.dumps(value, default=str, ensure_ascii=False)
    else:
        text = str(value)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}…"


def column_statistics(snapshot: Snapshot, masked: Collection[str]) -> TableMetadataValue:
    """Minimum, maximum and nulls of the first `MAX_COLUMNS` columns, as the log records them: no
    data is read. What the log lacks for some file is empty. Of long texts, of times (which writers
    cut to milliseconds), and where rows were deleted from files, minimum and maximum may be bounds
    that no row has; after such deletes, nulls are empty.

    Raises:
        InvalidArgument: a masked column does not exist.
    """
    check_masked_columns(masked, snapshot.schema)
    hidden = {fold_name(name) for name in masked}
    rows = snapshot.statistics([])
    is_exact = pc.min(rows["tight_bounds"]).as_py() is not False
    records = []
    for name, minimums, maximums, nulls in column_bounds(
        snapshot, snapshot.schema.names[:MAX_COLUMNS]
    ):
        # A file of nulls has no bounds.
        needed = pc.fill_null(pc.not_equal(nulls, rows["num_records"]), fill_value=True)
        bounds = (
            pc.min(minimums.filter(needed), skip_nulls=False),
            pc.max(maximums.filter(needed), skip_nulls=False),
        )
        least, greatest = (
            shown_value(python_value(bound), masked=fold_name(name) in hidden) for bound in bounds
        )
        count = pc.sum(nulls, skip_nulls=False).as_py() if is_exact else None
        records.append(TableRecord({"column": name, "min": least, "max": greatest, "nulls": count}))
    return MetadataValue.table(records, _SCHEMA)
