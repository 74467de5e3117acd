"""File actions of a checkpoint in batches, for tables with too many files for memory.

Spec: Checkpoints; Checkpoint Schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.protocol.checkpoint.columns import (
    conform,
    corruption_named,
    has_column,
    required,
)
from dagster_delta.protocol.checkpoint.reader import (
    ADD_SOURCES,
    REQUIRED_ADD_COLUMNS,
    CheckpointPart,
)
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA, HiddenFiles
from dagster_delta.protocol.statistics.log_statistics import (
    checkpoint_statistics,
    checkpoint_statistics_json,
    statistics_leaves,
)
from dagster_delta.protocol.statistics.statistics import StatisticsColumn, parse_statistics_json

_BATCH_ROWS = 65_536
_KEY_COLUMNS = ("path", "deletion_vector")


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
        yield FileBatch(some.select(list(names)), _statistics_of_texts(some["stats"]))


def _statistics_of_texts(
    texts: pa.ChunkedArray,
) -> Callable[[Sequence[StatisticsColumn]], pa.Table]:
    return lambda columns: parse_statistics_json(texts, columns)


def batches_of_part(
    part: CheckpointPart,
    names: Sequence[str],
    statistics: Sequence[StatisticsColumn] | None,
    *,
    hidden: HiddenFiles,
    live: pa.BooleanArray | None = None,
    share: tuple[int, int] = (0, 1),
) -> Iterator[FileBatch]:
    """The live adds of one file of a checkpoint; each batch frees its decoded data.

    `statistics` are the columns whose statistics may be requested; None for none. `live` is a
    `pa.BooleanArray` over all rows of the file, if known: its adds that are live according to
    `hidden`. `share` says which of how many shares of the file to read, see
    `CheckpointPart.batches`; `live` is then not known.
    """
    if not part.has("add", "path"):
        return
    start = 0
    with corruption_named(part.path):
        for rows in part.batches(_leaves(part, names, statistics), _BATCH_ROWS, share):
            batch = _AddBatch(rows, part.path)
            adds = pc.is_valid(pc.struct_field(rows.column("add"), "path"))
            if live is not None:
                adds = live.slice(start, len(rows))
            start += len(rows)
            keep = _left_alone(batch, adds, hidden)
            if keep.true_count:
                yield FileBatch(_columns(batch, names, keep), _statistics_of_batch(batch, keep))


def _leaves(
    part: CheckpointPart, names: Sequence[str], statistics: Sequence[StatisticsColumn] | None
) -> list[str]:
    wanted = {f"add.{ADD_SOURCES[name]}" for name in (*_KEY_COLUMNS, *names)}
    has_parsed = part.has("add", "stats_parsed", "numRecords")
    if "stats" in names and has_parsed and part.num_values("add", "stats") != part.num_adds:
        wanted.add("add.stats_parsed")
    if statistics is not None:
        known = part.num_values("add", "stats_parsed", "numRecords") if has_parsed else 0
        if known != part.num_adds:
            wanted.add("add.stats")
        if has_parsed:
            wanted |= {
                ".".join(("add", "stats_parsed", *leaf)) for leaf in statistics_leaves(statistics)
            }
    return sorted(wanted)


def _left_alone(batch: _AddBatch, adds: pa.BooleanArray, hidden: HiddenFiles) -> pa.BooleanArray:
    paths = pa.chunked_array([batch.column("path", adds)], pa.string())

    def vectors_of(touched: pa.BooleanArray) -> pa.ChunkedArray:
        return pa.chunked_array([pc.filter(batch.column("deletion_vector", adds), touched)])

    kept = hidden.rows_to_keep(paths, vectors_of)
    return adds if kept is None else pc.replace_with_mask(adds, adds, kept)


def _columns(batch: _AddBatch, names: Sequence[str], keep: pa.BooleanArray) -> pa.Table:
    schema = pa.schema([LIVE_FILE_SCHEMA.field(name) for name in names])
    columns = [
        checkpoint_statistics_json(batch, keep) if name == "stats" else batch.column(name, keep)
        for name in names
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _statistics_of_batch(
    batch: _AddBatch, keep: pa.BooleanArray
) -> Callable[[Sequence[StatisticsColumn]], pa.Table]:
    def statistics(columns: Sequence[StatisticsColumn]) -> pa.Table:
        with corruption_named(batch.path):
            return checkpoint_statistics(batch, keep, columns)

    return statistics


class _AddBatch:
    """Consecutive rows of a checkpoint file, with the same interface as the file."""

    def __init__(self, rows: pa.RecordBatch, path: str) -> None:
        self._adds = rows.column("add")
        self.path = path

    def has(self, *path: str) -> bool:
        """Whether the batch has a column at this path of names, the first of which is `add`."""
        return has_column(self._adds.type, path[1:])

    def column(self, name: str, keep: pa.BooleanArray) -> pa.Array:
        """A column of LIVE_FILE_SCHEMA in the chosen rows, as a `pa.Array`; null if the batch lacks
        it.
        """
        data_type = LIVE_FILE_SCHEMA.field(name).type
        found = pa.nulls(keep.true_count, data_type)
        if self.has("add", ADD_SOURCES[name]):
            values = pc.struct_field(self._adds, ADD_SOURCES[name])
            chosen = values if keep.true_count == len(keep) else pc.filter(values, keep)
            found = conform(chosen, data_type)
        return required(found, ADD_SOURCES[name]) if name in REQUIRED_ADD_COLUMNS else found

    def read_adds(
        self, columns: Sequence[str], keep: pa.BooleanArray
    ) -> dict[str, pa.ChunkedArray]:
        return {name: pa.chunked_array([self.column(name, keep)]) for name in columns}

    def read_parsed_statistics(
        self, paths: Sequence[Sequence[str]] | None, keep: pa.BooleanArray
    ) -> pa.ChunkedArray | None:
        """As `CheckpointPart.read_parsed_statistics`, possibly with more leaves."""
        if not self.has("add", "stats_parsed"):
            return None
        parsed = pc.struct_field(self._adds, "stats_parsed")
        if paths is not None and not any(self.has("add", "stats_parsed", *path) for path in paths):
            return None
        return pa.chunked_array([pc.filter(parsed, keep)])


def batches_of_removes(part: CheckpointPart, hidden: HiddenFiles) -> Iterator[pa.Table]:
    """The tombstones of one file of a checkpoint, `pa.Table`s of TOMBSTONE_SCHEMA."""
    for removes in part.remove_batches():
        kept = hidden.rows_to_keep(removes["path"], removes["deletion_vector"].filter)
        yield removes if kept is None else pc.filter(removes, kept)
