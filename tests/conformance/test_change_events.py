"""AUTO CDC on every engine: what orders the events, and which rows of the table they replace."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.errors import InvalidArgument, UnsupportedExpression, UnsupportedFeature
from dagster_delta.protocol.schema import PrimitiveType, StructField, StructType
from tests.conformance.engines import Engine

HISTORY: dict[str, Any] = {
    "keys": ["k"],
    "stored_as_scd_type": 2,
    "apply_as_deletes": "op = 'D'",
    "except_column_list": ["op", "a", "b"],
}
PLAIN: dict[str, str] = {}
VECTORS = {"delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": "true"}
TRACKED = {"delta.enableRowTracking": "true", "delta.enableDeletionVectors": "true"}
STRUCT = pa.struct([("a", pa.int64()), ("b", pa.int64())])


def events(*rows: tuple[int, int | None, int | None, str]) -> pa.Table:
    """Rows (k, a, b, v), where v = D is a delete."""
    keys, firsts, seconds, values = zip(*rows, strict=True)
    ops = ["D" if value == "D" else "U" for value in values]
    numbers = [pa.array(column, pa.int64()) for column in (keys, firsts, seconds)]
    return pa.table([*numbers, ops, values], ["k", "a", "b", "op", "v"])


@pytest.mark.parametrize(
    ("sequence_by", "kind", "bounds"),
    [
        ("coalesce(a, b)", pa.int64(), [(1, 2), (2, 4), (4, None)]),
        (
            "cast(coalesce(A, b) * 10 AS DOUBLE)",
            pa.float64(),
            [(10.0, 20.0), (20.0, 40.0), (40.0, None)],
        ),
        (
            "struct(coalesce(a, b), b)",
            pa.struct([("col1", pa.int64()), ("b", pa.int64())]),
            [((1, 9), (2, 2)), ((2, 2), (4, 4)), ((4, 4), None)],
        ),
        (
            "named_struct('n', coalesce(a, b))",
            pa.struct([("n", pa.int64())]),
            [((1,), (2,)), ((2,), (4,)), ((4,), None)],
        ),
        (
            ["coalesce(a, b)", "b"],
            pa.struct([("col1", pa.int64()), ("b", pa.int64())]),
            [((1, 9), (2, 2)), ((2, 2), (4, 4)), ((4, 4), None)],
        ),
    ],
)
def test_sql_orders_the_events_of_a_key(
    engine: Engine, table: DeltaTable, sequence_by: Any, kind: pa.DataType, bounds: list[Any]
) -> None:
    options = {**HISTORY, "sequence_by": sequence_by, "engine": engine.name}
    table.apply_changes(engine.rows(events((1, None, 4, "c"), (1, 1, 9, "a"))), **options)
    table.apply_changes(engine.rows(events((1, None, 2, "b"))), **options)
    rows = table.snapshot().scan().to_arrow()
    assert rows.schema.field("__START_AT").type == kind
    assert rows.schema.field("__END_AT").type == kind
    plain = [
        tuple(tuple(end.values()) if isinstance(end, dict) else end for end in row.values())
        for row in rows.select(["__START_AT", "__END_AT", "v"]).to_pylist()
    ]
    values = zip(bounds, "abc", strict=True)
    assert sorted(plain, key=repr) == sorted(((*pair, value) for pair, value in values), key=repr)
    again = table.apply_changes(engine.rows(events((1, None, 2, "b"))), **options)
    assert again.skipped


def test_newest_rows_are_those_of_the_greatest_expression(
    engine: Engine, table: DeltaTable
) -> None:
    options: dict[str, Any] = {"keys": ["k"], "sequence_by": "greatest(a, b)"}
    options["engine"] = engine.name
    table.apply_changes(engine.rows(events((1, 1, 7, "new"), (2, 3, 3, "old"))), **options)
    table.apply_changes(engine.rows(events((1, 6, 2, "late"), (2, 1, 4, "newer"))), **options)
    assert sorted(engine.tuples(table, "k", "v")) == [(1, "new"), (2, "newer")]


@pytest.mark.parametrize(
    ("sequence_by", "kind", "message"),
    [
        ("sequence", InvalidArgument, "did you mean|they are"),
        ("rand()", InvalidArgument, "another answer each time"),
        ("a +", InvalidArgument, "sequence_by 'a \\+' is neither"),
        ("map(a, b)", UnsupportedExpression, "add it to the events as a column"),
        ("struct(a AS x, b)", UnsupportedExpression, "add it to the events as a column"),
    ],
)
def test_sequence_that_has_no_known_type_is_refused(
    engine: Engine, table: DeltaTable, sequence_by: str, kind: type, message: str
) -> None:
    rows, options = engine.rows(events((1, 1, 1, "a"))), {**HISTORY, "sequence_by": sequence_by}
    with pytest.raises(kind, match=message):
        table.apply_changes(rows, engine=engine.name, **options)
    assert not DeltaTable.is_delta_table(table.uri)


@pytest.mark.parametrize("properties", [PLAIN, VECTORS, TRACKED], ids=["plain", "feed", "tracked"])
def test_late_events_replace_rows_where_they_are(
    engine: Engine, table: DeltaTable, properties: dict[str, str]
) -> None:
    """Rows keep the columns that events lack; their ids stay, and the feed has each change once."""
    first = pa.table(
        {
            "k": pa.array([1, 2, 3], pa.int64()),
            "v": ["a", "b", "c"],
            "extra": ["x", "y", "z"],
            "__START_AT": pa.array([1, 1, 1], pa.int64()),
            "__END_AT": pa.array([None, None, None], pa.int64()),
        }
    )
    table.append(engine.rows(first), properties=properties)
    options = {**HISTORY, "sequence_by": "a", "engine": engine.name}
    given = events((1, 5, 0, "new"), (2, 4, 0, "D"), (4, 1, 0, "d"))
    done = table.apply_changes(engine.rows(given), **options)
    assert sorted(engine.tuples(table, "k", "v", "extra", "__START_AT", "__END_AT"), key=repr) == [
        (1, "a", "x", 1, 5),
        (1, "new", None, 5, None),
        (2, "b", "y", 1, 4),
        (3, "c", "z", 1, None),
        (4, "d", None, 1, None),
    ]
    assert done.metrics["numTargetRowsUpdated"] == 2
    assert done.metrics["numTargetRowsInserted"] == 2
    if properties is VECTORS:
        found = sorted(engine.changes(table, done.version, "k", "__END_AT"), key=repr)
        assert found == [
            ("insert", 1, None),
            ("insert", 4, None),
            ("update_postimage", 1, 5),
            ("update_postimage", 2, 4),
            ("update_preimage", 1, None),
            ("update_preimage", 2, None),
        ]


@pytest.mark.parametrize("scd", [1, 2])
def test_rows_that_others_wrote_twice_all_change(
    engine: Engine, table: DeltaTable, scd: int
) -> None:
    first = pa.table(
        {
            "k": pa.array([1, 1, 2], pa.int64()),
            "v": ["a", "a", "b"],
            "__START_AT": pa.array([1, 1, 1], pa.int64()),
            "__END_AT": pa.array([None, None, None], pa.int64()),
        }
    )
    kept = first if scd == 2 else first.select(["k", "v"])
    table.append(engine.rows(kept), properties=VECTORS)
    options = {**HISTORY, "sequence_by": "a", "stored_as_scd_type": scd, "engine": engine.name}
    table.apply_changes(engine.rows(events((1, 5, 0, "new"), (2, 5, 0, "D"))), **options)
    if scd == 1:
        assert engine.tuples(table, "k", "v") == [(1, "new"), (1, "new")]
        return
    assert sorted(engine.tuples(table, "k", "v", "__END_AT"), key=repr) == [
        (1, "a", 5),
        (1, "a", 5),
        (1, "new", None),
        (2, "b", 5),
    ]


@pytest.mark.parametrize("type_", [1, 2])
def test_texts_of_events_are_padded_as_those_of_char_columns(
    engine: Engine, table: DeltaTable, type_: int
) -> None:
    limit = {"__CHAR_VARCHAR_TYPE_STRING": "char(5)"}
    text, number = PrimitiveType("string"), PrimitiveType("long")
    fields = [StructField("k", text, metadata=limit), StructField("v", text, metadata=limit)]
    names = ["n"] if type_ == 1 else ["__START_AT", "__END_AT"]
    created = DeltaTable.create(table.uri, [*fields, *(StructField(n, number) for n in names)])
    options: dict[str, Any] = {"keys": ["k"], "sequence_by": "n", "stored_as_scd_type": type_}
    if type_ == 2:
        options["except_column_list"] = ["n"]
    for k, v, n in (("ab", "x", 1), ("ab  ", "x", 3), ("ab", "y", 4), ("c", "x", 2)):
        rows = engine.rows(pa.table({"K": [k], "v": [v], "n": [n]}))
        created.apply_changes(rows, engine=engine.name, **options)
    expected: list[tuple[Any, ...]] = [("ab   ", "y    ", 4), ("c    ", "x    ", 2)]
    if type_ == 2:
        expected = [
            ("ab   ", "x    ", 1, 4),
            ("ab   ", "y    ", 4, None),
            ("c    ", "x    ", 2, None),
        ]
    assert sorted(engine.tuples(created)) == expected


def test_events_of_texts_with_blanks_within_a_column_are_refused(
    engine: Engine, table: DeltaTable
) -> None:
    text, number = PrimitiveType("string"), PrimitiveType("long")
    limit = {"__CHAR_VARCHAR_TYPE_STRING": "struct<code:char(5)>"}
    struct = StructType((StructField("code", text),))
    fields = [StructField("k", number), StructField("s", struct, metadata=limit)]
    created = DeltaTable.create(table.uri, [*fields, StructField("n", number)])
    rows = engine.rows(pa.table({"k": [1], "s": [{"code": "a"}], "n": [1]}))
    with pytest.raises(UnsupportedFeature, match=r"CHAR\(n\) within a column"):
        created.apply_changes(rows, keys=["k"], sequence_by="n", engine=engine.name)
    assert created.version() == 0
