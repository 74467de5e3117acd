"""File actions of a checkpoint in batches, which a table with many files never has in memory all at
once, and the columns of chosen files.

Statistics are the parsed ones; those that a writer stored as JSON alone are parsed.

Spec: Checkpoints; Checkpoint Schema; Per-file Statistics.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import partial
from typing import Literal, cast

import msgspec
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.protocol.checkpoint.reader import (
    CheckpointPart,
    conform,
    corruption_named,
    has_column,
    required,
)
from dagster_delta.protocol.log.replay import (
    ADD_SOURCES,
    LIVE_FILE_SCHEMA,
    REMOVE_SOURCES,
    TOMBSTONE_SCHEMA,
    HiddenFiles,
)
from dagster_delta.protocol.statistics.statistics import (
    StatisticsColumn,
    parse_statistics_json,
    project_parsed_statistics,
    statistics_schema,
)
from dagster_delta.protocol.values.arrow_columns import chunks_where, string_column, whole_array

_BATCH_ROWS = 65_536
_REQUIRED_COLUMNS = (("add", "path"), ("add", "size_bytes"))
_ACTIONS = {"add": (LIVE_FILE_SCHEMA, ADD_SOURCES), "remove": (TOMBSTONE_SCHEMA, REMOVE_SOURCES)}
_NOTHING_HIDDEN = HiddenFiles(())
_ENCODER = msgspec.json.Encoder(decimal_format="number")


class FileBatch(msgspec.Struct, frozen=True):
    """Some live files."""

    files: pa.Table
    """`pa.Table` with the requested columns of LIVE_FILE_SCHEMA."""
    statistics: Callable[[Sequence[StatisticsColumn]], pa.Table]
    """Returns the statistics table of the files, one row per file in order, for some of the
    requested columns."""


def batches_of_files(files: pa.Table, names: Sequence[str]) -> Iterator[FileBatch]:
    """Files that are known already, as batches."""
    for start in range(0, files.num_rows, _BATCH_ROWS):
        some = files.slice(start, _BATCH_ROWS)
        yield FileBatch(some.select(list(names)), partial(parse_statistics_json, some["stats"]))


def batches_of_part(
    part: CheckpointPart,
    names: Sequence[str],
    statistics: Sequence[StatisticsColumn] | None,
    *,
    hidden: HiddenFiles = _NOTHING_HIDDEN,
    live: pa.BooleanArray | None = None,
) -> Iterator[FileBatch]:
    """The live adds of one file of a checkpoint; each batch frees its decoded data.

    `statistics` are the columns whose statistics may be requested; None for none. `live` is a
    `pa.BooleanArray` over all rows of the file, if known: its adds that are live according to
    `hidden`. An add that lacks a required field is a CorruptLog.
    """
    if part.num_values("add", "path") == 0:
        return
    start = 0
    keys = () if live is not None and hidden.is_empty else ("path", "deletion_vector")
    with corruption_named(part.path):
        for rows in part.batches(_choose_leaves(part, {*keys, *names}, statistics), _BATCH_ROWS):
            adds = _Files(rows, None if live is None else live.slice(start, len(rows)))
            start += len(rows)
            kept = hidden.rows_to_keep(adds.column("path"), adds.vectors) if keys else None
            if kept is not None:
                adds = _Files(rows, pc.replace_with_mask(adds.keep, adds.keep, kept))
            if adds.keep.true_count:
                statistics_of = corruption_named(part.path)(adds.statistics)
                yield FileBatch(adds.columns(names), statistics_of)


def _choose_leaves(
    part: CheckpointPart, names: set[str], statistics: Sequence[StatisticsColumn] | None
) -> list[str]:
    sources = (ADD_SOURCES[name] for name in names)
    wanted = {f"add.{source}" for source in sources if part.may_have_values(source)}
    if "stats" in names and part.num_values("add", "stats") != part.num_adds:
        wanted.add("add.stats_parsed")
    if statistics is not None:
        if part.num_values("add", "stats_parsed", "numRecords") != part.num_adds:
            wanted.add("add.stats")
        wanted |= {
            ".".join(("add", "stats_parsed", *leaf)) for leaf in _statistics_leaves(statistics)
        }
    return sorted(wanted)


def _statistics_leaves(columns: Sequence[StatisticsColumn]) -> list[tuple[str, ...]]:
    groups = ("minValues", "maxValues", "nullCount", "nullCounts")
    leaves = [(group, *column.path) for column in columns for group in groups]
    return [("numRecords",), ("tightBounds",), *leaves]


def read_adds(part: CheckpointPart, names: Sequence[str], live: pa.BooleanArray) -> pa.Table:
    """A `pa.Table` with columns of LIVE_FILE_SCHEMA of the live adds, null if the file lacks them.

    `live` is a `pa.BooleanArray` over all rows of the file.
    """
    schema = pa.schema([LIVE_FILE_SCHEMA.field(name) for name in names])
    batches = batches_of_part(part, names, None, live=live)
    return part.kept_table(schema, (batch.files for batch in batches))


def read_statistics(
    part: CheckpointPart, columns: Sequence[StatisticsColumn], live: pa.BooleanArray
) -> pa.Table:
    """The `pa.Table` that `parse_statistics_json` would make for the live adds."""
    batches = batches_of_part(part, (), columns, live=live)
    tables = (batch.statistics(columns) for batch in batches)
    return part.kept_table(statistics_schema(columns), tables)


class _Files:
    """Some of consecutive rows of a checkpoint file: those of `keep`, or all that are an action."""

    def __init__(
        self,
        rows: pa.RecordBatch,
        keep: pa.BooleanArray | None,
        action: Literal["add", "remove"] = "add",
    ) -> None:
        self._rows = rows
        self._action = action
        self.keep = pc.is_valid(self._get_field("path")) if keep is None else keep

    def _has_column(self, *path: str) -> bool:
        return has_column(self._rows.schema, (self._action, *path))

    def _get_field(self, name: str) -> pa.Array:
        return pc.struct_field(self._rows.column(self._action), name)

    def column(self, name: str) -> pa.ChunkedArray:
        """A column of the schema of the action; null if the rows lack it."""
        schema, sources = _ACTIONS[self._action]
        source, data_type = sources[name], schema.field(name).type
        chunks = [pa.nulls(self.keep.true_count, data_type)]
        if self._has_column(source):
            chunks = chunks_where(self._get_field(source), self.keep)
        found = pa.chunked_array([conform(chunk, data_type) for chunk in chunks], data_type)
        return required(found, source) if (self._action, name) in _REQUIRED_COLUMNS else found

    def vectors(self, touched: pa.BooleanArray) -> pa.ChunkedArray:
        """The deletion vectors of some of the rows."""
        return pc.filter(self.column("deletion_vector"), touched)

    def columns(self, names: Sequence[str]) -> pa.Table:
        """Columns of LIVE_FILE_SCHEMA, with statistics as JSON text."""
        columns = [
            self._fill_statistics_texts() if name == "stats" else self.column(name)
            for name in names
        ]
        schema = pa.schema([LIVE_FILE_SCHEMA.field(name) for name in names])
        return pa.Table.from_arrays(columns, schema=schema)

    def _get_parsed_statistics(self) -> pa.ChunkedArray:
        return pa.chunked_array(chunks_where(self._get_field("stats_parsed"), self.keep))

    def _fill_statistics_texts(self) -> pa.ChunkedArray:
        texts = self.column("stats")
        if not texts.null_count or not self._has_column("stats_parsed"):
            return texts
        absent = whole_array(pc.is_null(texts))
        unwritten = pc.filter(whole_array(self._get_parsed_statistics()), absent)
        spelled = string_column([_spell_statistics(row) for row in _to_python(unwritten)])
        return pa.chunked_array([pc.replace_with_mask(whole_array(texts), absent, spelled)])

    def statistics(self, columns: Sequence[StatisticsColumn]) -> pa.Table:
        """The table of statistics."""
        if not self._has_column("stats_parsed"):
            return parse_statistics_json(self.column("stats"), columns)
        table = project_parsed_statistics(self._get_parsed_statistics(), columns)
        unknown = pc.is_null(table.column("num_records"))
        # Files by writers that wrote only JSON have no parsed statistics.
        if not pc.any(unknown).as_py() or not self._has_column("stats"):
            return table
        filled = parse_statistics_json(pc.filter(self.column("stats"), unknown), columns)
        mask = whole_array(unknown)
        merged = [
            pc.replace_with_mask(whole_array(table.column(i)), mask, whole_array(filled.column(i)))
            for i in range(table.num_columns)
        ]
        return pa.Table.from_arrays(merged, schema=table.schema)


def _to_python(rows: pa.StructArray) -> list[Mapping[str, object] | None]:
    """The rows as Python values, or as scalars if Python has no such value."""
    try:
        return cast("list[Mapping[str, object] | None]", rows.to_pylist())
    except (ValueError, OverflowError):
        # Dates of Python end at the year 9999, those of a table do not.
        return [row if row.is_valid else None for row in rows]


def _spell_statistics(statistics: Mapping[str, object] | None) -> str | None:
    if statistics is None:
        return None
    named = {"nullCount" if key == "nullCounts" else key: statistics[key] for key in statistics}
    return _ENCODER.encode(_to_json_value(named) or {}).decode()


def _to_json_value(value: object) -> object:
    # Omit values that JSON cannot represent: unknown statistics are always correct.
    match value:
        case dict() | pa.StructScalar():
            items = {key: _to_json_value(value[key]) for key in value}
            known = {key: item for key, item in items.items() if item is not None}
            # The bounds of a variant are two binaries here, and not an object in JSON.
            return known if known or not value else None
        case float() if not math.isfinite(value):
            return None
        case bool() | int() | float() | str() | Decimal():
            return value
        case dt.datetime():
            text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
            return text if value.tzinfo is None else f"{text}Z"
        case dt.date():
            return value.isoformat()
        case pa.Scalar():
            with suppress(ValueError, OverflowError):
                return _to_json_value(value.as_py())
            return None
        case _:
            return None


def batches_of_removes(
    part: CheckpointPart, hidden: HiddenFiles = _NOTHING_HIDDEN
) -> Iterator[pa.Table]:
    """The tombstones of one file of a checkpoint, `pa.Table`s of TOMBSTONE_SCHEMA."""
    if part.num_values("remove", "path") == 0:
        return
    with corruption_named(part.path):
        for rows in part.batches([f"remove.{source}" for source in REMOVE_SOURCES.values()]):
            found = _Files(rows, None, "remove")
            if not found.keep.true_count:
                continue
            columns = [found.column(name) for name in TOMBSTONE_SCHEMA.names]
            removes = pa.Table.from_arrays(columns, schema=TOMBSTONE_SCHEMA)
            kept = hidden.rows_to_keep(removes["path"], removes["deletion_vector"].filter)
            yield removes if kept is None else pc.filter(removes, kept)


def read_removes(part: CheckpointPart, hidden: HiddenFiles = _NOTHING_HIDDEN) -> pa.Table:
    """A `pa.Table` of TOMBSTONE_SCHEMA: every remove."""
    return part.kept_table(TOMBSTONE_SCHEMA, batches_of_removes(part, hidden))
