"""The net of row changes: without rows that only moved from one file to another, or that were
changed again.

Rows are counted as a multiset by an embedded SQL engine, which spills to disk if memory is short.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import dagster_delta.arrow_compute as pc
from dagster_delta.engines.memory_budget import MemoryBudget
from dagster_delta.engines.statements.source_buffer import SourceRows
from dagster_delta.nested_arrays import index_of, numbers_of
from dagster_delta.protocol.features.change_data import CHANGE_TYPE_COLUMN, COMMIT_VERSION_COLUMN
from dagster_delta.protocol.schema import DataType, StructType
from dagster_delta.protocol.values.arrow_columns import integer_column, string_column, whole_array
from dagster_delta.protocol.values.arrow_schema import to_arrow_schema, to_arrow_type
from dagster_delta.sql.duckdb_sql import duckdb_input, open_database
from dagster_delta.sql.types import VARIANT, holds_values, is_primitive
from dagster_delta.storage.scratch import scratch_directory

_INSERTS = string_column(["insert", "update_postimage"])
_UPDATES = string_column(["update_preimage", "update_postimage"])
_KINDS = string_column(["delete", "update_preimage", "insert", "update_postimage"])


def net_changes(
    batches: Iterable[pa.RecordBatch],
    schema: StructType,
    columns: Sequence[str],
    *,
    row_id: str | None = None,
    has_updates: bool = False,
) -> Iterator[pa.RecordBatch]:
    """The changes of some versions as if one commit had made them; removed rows first.

    A removed row and an equal one that came are no change. Without ids of rows, the images of an
    update become a delete and an insert if a row of its version was changed again: which image
    belongs to which is not known.

    `batches`: `pyarrow.RecordBatch`es of a schema that has `_change_type` and `_commit_version`;
    `columns` of them are compared. `row_id`: a column with ids of rows, if all are of one version;
    a deleted and an inserted row with one id are the images of an update. `has_updates`: whether
    the rows are of several versions, or may be images of updates already.
    """
    memory = MemoryBudget.of(None)
    with scratch_directory("delta-changes-") as directory:
        reader = pa.RecordBatchReader.from_batches(to_arrow_schema(schema), batches)
        rows = SourceRows(reader, directory, memory_bytes=memory.source_bytes)
        given = _Given(rows, columns, row_id, has_updates or row_id is not None)
        numbers, kinds = given.find_surplus(directory, memory) if rows.num_rows else _NOTHING
        place = schema.names.index(CHANGE_TYPE_COLUMN)
        for part in rows.parts(numbers, schema.names) if len(numbers) else ():
            found = rows.take(numbers[part], schema.names)
            types = pc.take(_KINDS, index_of(kinds[part]))
            yield found.set_column(place, found.schema.field(place), types)


_AFTER_ALL = np.int64(1 << 60)
_Numbers = NDArray[np.int64]
_NOTHING: tuple[_Numbers, _Numbers] = (np.empty(0, np.int64), np.empty(0, np.int64))

_COUNTED = """WITH given AS ({given}), counted AS (
    SELECT {keys}, version, is_update, sum(sign)::BIGINT AS balance,
        max(n) FILTER (sign < 0) AS gone, max(n) FILTER (sign > 0) AS came
    FROM given GROUP BY ALL HAVING balance <> 0
)
SELECT CASE WHEN balance < 0 THEN gone ELSE came END AS row, version, is_update,
    balance > 0 AS is_in, abs(balance) AS had, {kept} AS kept
FROM {counted}"""

# Of equal rows that several versions changed, an image of an update is rather kept than another
# row, since its other image is there, too.
_RANKED = """(
    SELECT *, sum(balance) OVER (PARTITION BY {keys}) AS total,
        coalesce(sum(abs(balance)) OVER (
            PARTITION BY {keys}, sign(balance) ORDER BY is_update DESC, version
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), 0) AS earlier
    FROM counted
)"""
_KEPT = """CASE WHEN sign(balance) = sign(total)
    THEN greatest(0, least(abs(balance), abs(total) - earlier)) ELSE 0 END::BIGINT"""

_PLAIN = ("counted", "had")

_IDENTIFIED = """SELECT * REPLACE (CASE WHEN is_update THEN id END AS id) FROM (
    SELECT * REPLACE (id IS NOT NULL AND count(*) OVER (PARTITION BY id) > 1 AS is_update) FROM rows
)"""


class _Given(msgspec.Struct, frozen=True):
    """The rows whose net is found."""

    rows: SourceRows
    columns: Sequence[str]
    row_id: str | None
    has_updates: bool

    def find_surplus(self, directory: str, memory: MemoryBudget) -> tuple[_Numbers, _Numbers]:
        """Numbers of the rows that are surplus, one of equal rows as often as needed, and what
        kind of change each is, by its place in `_KINDS`; ordered by the kinds of rows that leave
        and that come.
        """
        schema = self._schema
        keys = ", ".join(schema.names[len(_OWN) - 1 :])
        given = "SELECT * FROM rows" if self.row_id is None else _IDENTIFIED
        counted, kept = (_RANKED.format(keys=keys), _KEPT) if self.has_updates else _PLAIN
        query = _COUNTED.format(given=given, keys=keys, counted=counted, kept=kept)
        with open_database(
            directory, memory.join_bytes, preserve_insertion_order=False
        ) as connection:
            reader = pa.RecordBatchReader.from_batches(schema, self._inputs(schema))
            connection.register("rows", reader)
            found = connection.sql(query).to_arrow_table()
        row, version, is_update, is_in, had, left = (
            numbers_of(pc.cast(whole_array(column), pa.int64())) for column in found.columns
        )
        changed_again = np.unique(version[(is_update == 1) & (left < had)])
        kinds = 2 * is_in + is_update * ~np.isin(version, changed_again)
        # In one number: comes, number, kind. Two arrays would take several times as long to sort.
        ordered = np.sort(np.repeat(is_in * _AFTER_ALL + row * len(_KINDS) + kinds, left))
        return ordered % _AFTER_ALL // len(_KINDS), ordered % len(_KINDS)

    @property
    def _schema(self) -> pa.Schema:
        fields = [*_OWN, *(pa.field(f"k{n}", _key_type(t)) for n, t in enumerate(self._types))]
        return pa.schema(fields)

    @property
    def _types(self) -> list[DataType]:
        return [self.rows.schema.field(name).data_type for name in self.columns]

    def _inputs(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        types = self._types
        for start, batch in self.rows.batches():
            kinds = batch[CHANGE_TYPE_COLUMN]
            sign = pc.if_else(pc.is_in(kinds, value_set=_INSERTS), _COMES, _LEAVES)
            own = (
                index_of(np.arange(start, start + batch.num_rows)),
                sign,
                pc.is_in(kinds, value_set=_UPDATES),
                batch[COMMIT_VERSION_COLUMN],
                pa.nulls(batch.num_rows, pa.int64()) if self.row_id is None else batch[self.row_id],
            )
            values = map(_key_values, map(batch.column, self.columns), types)
            yield pa.RecordBatch.from_arrays([*own, *values], schema=schema)


_COMES, _LEAVES = pc.cast(integer_column([1, -1]), pa.int8())
_OWN = (
    pa.field("n", pa.int64()),
    pa.field("sign", pa.int8()),
    pa.field("is_update", pa.bool_()),
    pa.field("version", pa.int64()),
    pa.field("id", pa.int64()),
)


def _key_values(values: pa.Array, data_type: DataType) -> pa.Array:
    """A column in a form in which the SQL engine groups equal values, and no others."""
    if is_primitive(data_type) or data_type == VARIANT or holds_values(data_type):
        return duckdb_input(values, data_type)
    # Variants, and types without values, inside of others.
    texts = [None if value is None else repr(value) for value in values.to_pylist()]
    return string_column(texts)


def _key_type(data_type: DataType) -> pa.DataType:
    return _key_values(pa.nulls(0, to_arrow_type(data_type)), data_type).type
