"""Matches rows of the target with rows of the source.

Only the columns of the conditions are read. The keys of the source are in an embedded SQL engine
without file or network access, which spills its hash table to disk if memory is short; the rows of
the target are streamed through it. It keeps 24 bytes per row that changes. A few unequal keys of
one column are looked up by Arrow: to load and start the SQL engine takes longer.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.engines.memory_budget import MemoryBudget
from dagster_delta.engines.statements.merge_clauses import SOURCE, TARGET
from dagster_delta.engines.statements.merge_plan import MergeCondition, SourceSummary, key_condition
from dagster_delta.engines.statements.source_buffer import SourceRows
from dagster_delta.errors import UnsupportedFeature
from dagster_delta.nested_arrays import index_of, mask_of, numbers_of
from dagster_delta.parquet.data_file_reader import FILE_ORDINAL, ROW_INDEX
from dagster_delta.parquet.ordered_prefetch import BatchSource
from dagster_delta.protocol.schema import DataType
from dagster_delta.protocol.values.arrow_schema import to_arrow_type
from dagster_delta.sql.conditions import all_of
from dagster_delta.sql.duckdb_sql import comparable_input, duckdb_input, input_type, open_database
from dagster_delta.sql.evaluator import Columns, Evaluator, column_at
from dagster_delta.sql.typed import FALSE, Column

if TYPE_CHECKING:
    import duckdb
    from numpy.typing import NDArray

# With more keys, too many rows would pass.
_MAX_KEYS = 1_000_000

_MAX_BITS = 24
_ENTRIES_PER_KEY = 16
_WIDTHS = {
    pa.int8(): np.int8,
    pa.int16(): np.int16,
    pa.int32(): np.int32,
    pa.int64(): np.int64,
    pa.date32(): np.int32,
}


class SemiJoinFilter:
    """A set of whole numbers by their low bits: its members pass, and few other numbers do.

    May be used by several threads.

    `keys`: `pyarrow.ChunkedArray` of a type that `takes` is true of; nulls are equal to nothing.
    """

    def __init__(self, keys: pa.ChunkedArray) -> None:
        wanted = max(1, len(keys) * _ENTRIES_PER_KEY)
        size = 1 << min(_MAX_BITS, (wanted - 1).bit_length())
        self._mask = size - 1
        self._is_there = np.zeros(size, dtype=bool)
        for chunk in keys.chunks:
            self._is_there[self._to_places(pc.drop_null(chunk))] = True

    @staticmethod
    def takes(keys: pa.ChunkedArray) -> bool:
        """Whether there are few enough keys of the right kind."""
        return keys.type in _WIDTHS and len(keys) <= _MAX_KEYS

    def may_be_there(self, values: pa.Array) -> pa.BooleanArray:
        """Which values may be among the keys: a `pyarrow.BooleanArray`.

        `values`: `pyarrow.Array` of the type of the keys; a null may or may not pass.
        """
        return mask_of(self._is_there[self._to_places(values)])

    def _to_places(self, values: pa.Array) -> NDArray[np.int64]:
        # DLPack does not support nulls.
        width = _WIDTHS[values.type]
        if not len(values):
            return np.empty(0, dtype=np.int64)
        numbers = np.frombuffer(values.buffers()[1], dtype=width, count=values.offset + len(values))
        return numbers[values.offset :].astype(np.int64, copy=False) & self._mask


_BATCH_ROWS = 131_072

# Arrow hashes them again for each batch of the target.
_FEW_KEYS = 10_000
_FEW_KEY_BYTES = 1 << 20
_HASHED_BY_ARROW = frozenset(
    {pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.date32(), pa.string()}
)


def source_columns(
    batch: pa.RecordBatch, paths: Iterable[tuple[str, ...]]
) -> dict[tuple[str, ...], pa.Array]:
    """Columns of the source by path, out of a `pyarrow.RecordBatch` of its rows."""
    return {path: column_at(batch, path[1:]) for path in paths if path[0] == SOURCE}


def target_columns(
    batch: pa.RecordBatch, paths: Iterable[tuple[str, ...]]
) -> dict[tuple[str, ...], pa.Array]:
    """Columns of the target by path, out of a `pyarrow.RecordBatch` of its rows."""
    return {path: column_at(batch, path[1:]) for path in paths if path[0] == TARGET}


class Pairs(msgspec.Struct, frozen=True):
    """Rows of the target with a row of the source that matches."""

    ordinals: NDArray[np.int32]
    """numpy int32: file of the target's row."""
    rows: NDArray[np.int64]
    """numpy int64: index of the row in its file."""
    source_rows: NDArray[np.int64]
    """numpy int64: number of the source's row."""
    columns: Columns
    """The columns of the conditions."""


class SourceKeys(msgspec.Struct, frozen=True):
    """The rows of a source that can match, and their keys."""

    rows: tuple[NDArray[np.int64], ...]
    """numpy int64 arrays: numbers of the rows, batch by batch."""
    values: tuple[pa.ChunkedArray, ...]
    """Per key, `pyarrow.ChunkedArray`s with a chunk per batch."""

    @classmethod
    def of(cls, source: SourceRows, condition: MergeCondition) -> SourceKeys:
        """The keys of a source."""
        source_only = [Evaluator(part) for part in condition.source_only]
        keys = [Evaluator(key.source) for key in condition.keys]
        numbers: list[NDArray[np.int64]] = []
        parts: list[list[pa.Array]] = [[] for _ in keys]
        for start, batch in source.batches():
            places = np.arange(batch.num_rows, dtype=np.int64)
            rows = batch
            for own in source_only:
                columns = source_columns(rows, own.columns)
                kept = places_where(own.is_true(columns, rows.num_rows))
                rows, places = pc.take(rows, index_of(kept)), places[kept]
            for part, key in zip(parts, keys, strict=True):
                part.append(key.values(source_columns(rows, key.columns), rows.num_rows))
            numbers.append(places + start)
        values = (
            pa.chunked_array(part, to_arrow_type(key.data_type))
            for part, key in zip(parts, condition.keys, strict=True)
        )
        return cls(tuple(numbers), tuple(values))

    @property
    def num_rows(self) -> int:
        """Number of rows that may match."""
        return sum(map(len, self.rows))


class ArrowMergeSource(SourceRows):
    """The rows of a source, and the keys that they are joined by.

    `data`: anything that an append takes, except a Spark frame.
    """

    def __init__(self, data: object, directory: str, memory: MemoryBudget) -> None:
        if type(data).__module__.partition(".")[0] == "pyspark":
            raise UnsupportedFeature(
                "the embedded engine cannot merge a Spark DataFrame: omit engine to merge on "
                "Spark, or pass frame.toArrow()"
            )
        super().__init__(data, directory, memory_bytes=memory.source_bytes)
        self._materialized = time.perf_counter()
        self.directory, self.memory = directory, memory
        self._keys: tuple[MergeCondition, SourceKeys] | None = None

    def keys(self, condition: MergeCondition) -> SourceKeys:
        """The keys of the rows that can match; computed once. Raises as `summarise` does."""
        if self._keys is None or self._keys[0] is not condition:
            self._keys = condition, SourceKeys.of(self, condition)
        return self._keys[1]

    def summarise(self, condition: MergeCondition) -> SourceSummary:
        """The summary of the rows for planning. Raises as `MergeSource` says."""
        keys = self.keys(condition)
        if not keys.num_rows:
            return SourceSummary(self.num_rows, (FALSE,), self._materialized)
        conditions = map(key_condition, condition.keys, keys.values)
        return SourceSummary(self.num_rows, tuple(conditions), self._materialized)


class MergeJoin:
    """Joins rows of the target with the source; a context manager.

    `wanted`: columns of either side that are needed of the pairs.
    """

    def __init__(
        self,
        condition: MergeCondition,
        source: ArrowMergeSource,
        wanted: Mapping[tuple[str, ...], DataType],
    ) -> None:
        self._source, self._source_keys = source, source.keys(condition)
        self._keys = [Evaluator(key.target) for key in condition.keys]
        self._nulls_match = [key.nulls_match for key in condition.keys]
        self._types = [key.data_type for key in condition.keys]
        self._target_only = [Evaluator(part) for part in condition.target_only]
        # As one condition: a part must not fail on a pair for which an earlier one is false.
        self._rest = Evaluator(all_of(condition.rest)) if condition.rest else None
        of_pairs = {**wanted, **(self._rest.columns if self._rest else {})}
        self._carried = {path: kind for path, kind in of_pairs.items() if path[0] == TARGET}
        self._source_paths = [path for path in of_pairs if path[0] == SOURCE]
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._semi_join = self._find_filter(condition)

    @property
    def target_paths(self) -> frozenset[tuple[str, ...]]:
        """The columns of the target that batches must have."""
        computed = [*self._target_only, *self._keys]
        return frozenset(self._carried).union(*(value.columns for value in computed))

    @property
    def num_candidates(self) -> int:
        """Number of rows of the source that may match."""
        return self._source_keys.num_rows

    def close(self) -> None:
        """Release the resources of the SQL engine."""
        if self._connection is not None:
            self._connection.close()

    def narrowed(self, source: BatchSource) -> BatchSource:
        """A source of target rows without most of the rows that match no source row."""
        if self._semi_join is None:
            return source
        path, semi_join = self._semi_join

        def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                kept = pc.filter(batch, semi_join.may_be_there(column_at(batch, path)))
                if kept.num_rows:
                    yield kept

        return source.changed(rows)

    def pairs(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Pairs]:
        """The matching pairs, in no order.

        `batches`: `pyarrow.RecordBatch`es of the target with positions.
        """
        needed = sorted({path[1] for path in self._source_paths})
        keys = self._few_keys()
        joined = self._join_batches(batches) if keys is None else self._looked_up(batches, keys)
        # The traceback of an error would keep it open longer than the SQL engine.
        with closing(joined):
            for batch in joined:
                source_rows = numbers_of(batch.column("s"))
                for part in self._source.parts(source_rows, needed):
                    yield from self._find_pairs(
                        batch.slice(part.start, part.stop - part.start), needed
                    )

    def _few_keys(self) -> pa.Array | None:
        """The keys as a `pyarrow.Array`, if they are few, and Arrow can look each of them up."""
        if len(self._keys) != 1 or self._nulls_match[0] or self.num_candidates > _FEW_KEYS:
            return None
        (keys,) = self._source_keys.values
        if keys.type not in _HASHED_BY_ARROW or keys.nbytes > _FEW_KEY_BYTES:
            return None
        # A lookup finds one place of a key, and a pair with each is wanted.
        if pc.count_distinct(keys).as_py() < len(keys) - keys.null_count:
            return None
        return keys.combine_chunks()

    def _looked_up(
        self, batches: Iterable[pa.RecordBatch], keys: pa.Array
    ) -> Generator[pa.RecordBatch]:
        numbers = index_of(np.concatenate(self._source_keys.rows))
        for rows, columns in self._target_rows(batches):
            values = self._keys[0].values(columns, rows.num_rows)
            places = pc.index_in(pc.cast(values, keys.type), value_set=keys, skip_nulls=True)
            taken = pc.indices_nonzero(pc.is_valid(places))
            arrays = {
                "f": pc.take(rows.column(FILE_ORDINAL), taken),
                "r": pc.take(rows.column(ROW_INDEX), taken),
                "s": pc.take(numbers, pc.take(places, taken)),
            }
            for index, path in enumerate(self._carried):
                arrays[f"c{index}"] = pc.take(columns[path], taken)
            if len(taken):
                yield pa.RecordBatch.from_pydict(arrays)

    def _join_batches(self, batches: Iterable[pa.RecordBatch]) -> Generator[pa.RecordBatch]:
        import duckdb

        failures: list[BaseException] = []
        schema = pa.schema(list(self._target_fields()))
        inputs = pa.RecordBatchReader.from_batches(schema, self._make_inputs(batches, failures))
        connection = self._open_connection()
        connection.register("target", inputs)
        try:
            yield from connection.sql(self._render_join()).to_arrow_reader(_BATCH_ROWS)
        except (duckdb.Error, pa.ArrowException, OSError):
            # The SQL engine reports errors of its input as its own.
            if failures:
                raise failures[0] from None
            raise
        finally:
            connection.unregister("target")

    def _find_filter(
        self, condition: MergeCondition
    ) -> tuple[tuple[str, ...], SemiJoinFilter] | None:
        """A filter for the first key that is a column of the target and of a supported type."""
        for key, values in zip(condition.keys, self._source_keys.values, strict=True):
            if not isinstance(key.target, Column) or key.nulls_match:
                continue
            if SemiJoinFilter.takes(values):
                return key.target.path[1:], SemiJoinFilter(values)
        return None

    def _open_connection(self) -> duckdb.DuckDBPyConnection:
        connection = open_database(
            self._source.directory,
            self._source.memory.join_bytes,
            preserve_insertion_order=False,
            # The right side is hashed; the size of the streamed side is unknown.
            disabled_optimizers="join_order,build_side_probe_side",
        )
        self._connection = connection
        fields = [pa.field("s", pa.int64()), *self._key_fields()]
        reader = pa.RecordBatchReader.from_batches(pa.schema(fields), self._source_batches(fields))
        connection.register("given", reader)
        connection.execute("CREATE TABLE source AS SELECT * FROM given")
        connection.unregister("given")
        return connection

    def _source_batches(self, fields: list[pa.Field]) -> Iterator[pa.RecordBatch]:
        for index, rows in enumerate(self._source_keys.rows):
            arrays = [index_of(rows)]
            arrays += [
                comparable_input(key.chunk(index), data_type)
                for key, data_type in zip(self._source_keys.values, self._types, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def _key_fields(self) -> Iterator[pa.Field]:
        for index, data_type in enumerate(self._types):
            yield pa.field(f"k{index}", input_type(data_type))

    def _target_fields(self) -> Iterator[pa.Field]:
        yield pa.field("f", pa.int32())
        yield pa.field("r", pa.int64())
        yield from self._key_fields()
        for index, data_type in enumerate(self._carried.values()):
            yield pa.field(f"c{index}", input_type(data_type))

    def _render_join(self) -> str:
        conditions = [
            f"target.k{index} {'IS NOT DISTINCT FROM' if nulls_match else '='} source.k{index}"
            for index, nulls_match in enumerate(self._nulls_match)
        ]
        names = ["f", "r", "s", *(f"c{index}" for index in range(len(self._carried)))]
        join = f"JOIN source ON {' AND '.join(conditions)}" if conditions else "CROSS JOIN source"
        return f"SELECT {', '.join(names)} FROM target {join}"

    def _make_inputs(
        self, batches: Iterable[pa.RecordBatch], failures: list[BaseException]
    ) -> Iterator[pa.RecordBatch]:
        schema = pa.schema(list(self._target_fields()))
        try:
            for rows, columns in self._target_rows(batches):
                arrays = [rows.column(FILE_ORDINAL), rows.column(ROW_INDEX)]
                for key, data_type in zip(self._keys, self._types, strict=True):
                    arrays.append(comparable_input(key.values(columns, rows.num_rows), data_type))
                for path, data_type in self._carried.items():
                    arrays.append(duckdb_input(columns[path], data_type))
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)
        except BaseException as error:
            failures.append(error)
            raise

    def _target_rows(
        self, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[tuple[pa.RecordBatch, dict[tuple[str, ...], pa.Array]]]:
        """The rows of the target that can match, with their columns."""
        for batch in batches:
            rows = batch
            for part in self._target_only:
                columns = target_columns(rows, part.columns)
                rows = pc.filter(rows, part.is_true(columns, rows.num_rows))
            yield rows, target_columns(rows, self.target_paths)

    def _find_pairs(self, batch: pa.RecordBatch, needed: list[str]) -> Iterator[Pairs]:
        source_rows = numbers_of(batch.column("s"))
        columns: dict[tuple[str, ...], pa.Array] = {
            path: batch.column(f"c{index}") for index, path in enumerate(self._carried)
        }
        if needed:
            taken = self._source.take(source_rows, needed)
            columns |= source_columns(taken, self._source_paths)
        ordinals, rows = numbers_of(batch.column("f")), numbers_of(batch.column("r"))
        if self._rest is not None:
            kept = self._rest.is_true(columns, batch.num_rows)
            columns = {path: pc.filter(values, kept) for path, values in columns.items()}
            places = places_where(kept)
            ordinals, rows, source_rows = ordinals[places], rows[places], source_rows[places]
        if len(rows):
            yield Pairs(ordinals, rows, source_rows, columns)


def places_where(is_true: pa.BooleanArray) -> NDArray[np.int64]:
    """The indexes of the true values: numpy int64 array."""
    return numbers_of(pc.indices_nonzero(is_true)).astype(np.int64)
