"""Rows that a merge would leave as they are, and change events, on every engine."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.errors import ConstraintViolation, InvalidCast
from tests.conformance.engines import Engine
from tests.sample_tables import VECTORS

KIND = pa.struct([("a", pa.int32()), ("b", pa.float64())])
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string()), ("x", pa.float64()), ("s", KIND)])


def rows(*values: tuple[int, str | None, float | None, dict[str, Any] | None]) -> pa.Table:
    columns = list(zip(*values, strict=True))
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)],
        schema=SCHEMA,
    )


@pytest.mark.parametrize("properties", [{}, VECTORS])
def test_merge_leaves_equal_rows_as_they_are(
    engine: Engine, table: DeltaTable, properties: dict[str, str]
) -> None:
    nan = float("nan")
    before = rows(
        (1, None, nan, None),
        (2, "b", 0.0, {"a": None, "b": nan}),
        (3, "c", 1.0, {"a": 1, "b": 2.0}),
    )
    table.append(before, properties={**properties, "delta.enableChangeDataFeed": "true"})
    given = rows(
        (1, None, nan, None),
        (2, "b", -0.0, {"a": None, "b": nan}),
        (3, "c", 1.0, {"a": 1, "b": None}),
        (4, "d", None, None),
    )
    merge = table.merge(engine.rows(given), "t.id = s.id", skip_unchanged=True)
    done = merge.when_matched_update_all().when_not_matched_insert_all().execute()
    assert done.metrics["numTargetRowsUpdated"] == 1
    assert done.metrics["numTargetRowsInserted"] == 1
    changes = table.changes(done.version).to_arrow().to_pylist()
    assert sorted((row["id"], row["_change_type"]) for row in changes) == [
        (3, "update_postimage"),
        (3, "update_preimage"),
        (4, "insert"),
    ]
    merge = table.merge(engine.rows(given), "t.id = s.id", skip_unchanged=True)
    assert merge.when_matched_update_all().execute().skipped


@pytest.mark.parametrize(
    ("old", "given"),
    [
        (pa.array([Decimal("1.000000000000000001")], pa.decimal128(38, 18)), pa.array([1.0])),
        (pa.array([1.0], pa.float32()), pa.array([1.0 + 2**-20])),
        (pa.array([2**53 + 1]), pa.array([2.0**53])),
    ],
)
def test_value_of_another_type_is_no_equal_one(
    engine: Engine, table: DeltaTable, old: pa.Array, given: pa.Array
) -> None:
    table.append(pa.table({"id": [1], "v": old}))
    source = engine.rows(pa.table({"id": [1], "v": given}))
    merge = table.merge(source, "t.id = s.id", skip_unchanged=True)
    merge.when_matched_update({"v": "s.v"}).execute()
    (found,) = table.snapshot().scan().to_arrow()["v"].to_pylist()
    assert found == given.cast(old.type)[0].as_py()


def test_time_is_not_taken_for_its_day(engine: Engine, table: DeltaTable) -> None:
    table.append(pa.table({"id": [1], "v": pa.array([dt.date(2026, 1, 1)])}))
    at = pa.array([dt.datetime(2026, 1, 1, 10)], pa.timestamp("us"))
    source = engine.rows(pa.table({"id": [1], "v": at}))
    merge = table.merge(source, "t.id = s.id", skip_unchanged=True)
    with pytest.raises(InvalidCast, match="of column v"):
        merge.when_matched_update_all().execute()


def test_several_matches_are_refused_although_one_is_equal(
    engine: Engine, table: DeltaTable
) -> None:
    table.append(rows((1, "a", 1.0, None)))
    given = rows((1, "a", 1.0, None), (1, "b", 1.0, None))
    merge = table.merge(engine.rows(given), "t.id = s.id", skip_unchanged=True)
    with pytest.raises(ConstraintViolation, match="several rows of the source"):
        merge.when_matched_update_all().execute()


def test_events_of_struct_keys_have_their_history(engine: Engine, table: DeltaTable) -> None:
    key = pa.struct([("a", pa.int32()), ("b", pa.int32())])
    for seq in (3, 1, 2):
        given = pa.table(
            {"k": pa.array([{"a": 1, "b": None}], key), "seq": [seq], "v": [f"v{seq}"]}
        )
        table.apply_changes(
            engine.rows(given),
            keys=["k"],
            sequence_by="seq",
            stored_as_scd_type=2,
            except_column_list=["seq"],
        )
    found = table.snapshot().scan().to_arrow().to_pylist()
    assert sorted(
        (row["v"], row["__START_AT"], row["__END_AT"]) for row in found if row["v"] != "v3"
    ) == [("v1", 1, 2), ("v2", 2, 3)]
    assert len(found) == 3


def test_contradicting_events_are_refused(engine: Engine, table: DeltaTable) -> None:
    given = pa.table({"k": [1, 1], "seq": [1, 1], "v": ["a", "b"]})
    with pytest.raises(ConstraintViolation, match="on_equal_sequence"):
        table.apply_changes(engine.rows(given), keys=["k"], sequence_by="seq")
    given = pa.table({"k": pa.array([None], pa.int64()), "seq": [1], "v": ["a"]})
    with pytest.raises(ConstraintViolation, match="null in k"):
        table.apply_changes(engine.rows(given), keys=["k"], sequence_by="seq")


def test_snapshots_and_truncates_end_rows(engine: Engine, table: DeltaTable) -> None:
    def snapshot(*given: tuple[int, int, str]) -> Any:
        names = ("day", "k", "v")
        columns = {name: [row[place] for row in given] for place, name in enumerate(names)}
        return engine.rows(pa.table(columns))

    options: dict[str, Any] = {"keys": ["k"], "sequence_by": "day"}
    history = {
        **options,
        "stored_as_scd_type": 2,
        "except_column_list": ["day"],
        "from_snapshots": True,
    }
    table.apply_changes(snapshot((1, 1, "a"), (1, 2, "x")), **history)
    table.apply_changes(snapshot((2, 1, "a"), (3, 1, "b"), (3, 2, "x")), **history)
    found = table.snapshot().scan().to_arrow().to_pylist()
    assert sorted(map(repr, (tuple(row.values()) for row in found))) == [
        "(1, 'a', 1, 3)",
        "(1, 'b', 3, None)",
        "(2, 'x', 1, 2)",
        "(2, 'x', 3, None)",
    ]
    with pytest.raises(ConstraintViolation, match="older"):
        table.apply_changes(snapshot((2, 1, "z")), **history)
    newest = DeltaTable(table.uri + "_newest", must_exist=False)
    options["apply_as_truncates"] = "v = 'T'"
    newest.apply_changes(snapshot((1, 1, "a"), (8, 2, "b")), **options)
    newest.apply_changes(snapshot((5, 9, "T")), **options)
    newest.apply_changes(snapshot((4, 1, "late"), (6, 3, "new")), **options)
    found = newest.snapshot().scan(columns=["k", "v"]).to_arrow().to_pylist()
    assert sorted(tuple(row.values()) for row in found) == [(2, "b"), (3, "new")]
