"""The tables that programs are asked about: one for each feature or type, written by this library."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa

from dagster_delta import Column, DeltaTable, Identity, variants_from_json
from tests.readers.questions import Question, where

D = decimal.Decimal
UTC = dt.UTC
MAPPED = {"delta.columnMapping.mode": "name"}
VECTORS = {"delta.enableDeletionVectors": "true"}
WIDENING = {"delta.enableTypeWidening": "true"}
FEED = {"delta.enableChangeDataFeed": "true"}
COUNT = Question(name="count", kind="count")
ALL = Question(name="all rows")


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A table, and what is asked about it."""

    name: str
    features: tuple[str, ...]
    """What a reader has to know, in the names of the matrix."""
    write: Callable[[str], None]
    questions: tuple[Question, ...] = ()
    new_rows: pa.Table | None = None
    """Rows that each writer appends; None: no writer is asked."""

    def all_questions(self) -> tuple[Question, ...]:
        """Every table is read whole, counted, and read by one column."""
        return (ALL, COUNT, *self.questions)


SAMPLES: dict[str, Sample] = {}


def sample(
    name: str,
    *questions: Question,
    features: tuple[str, ...] = (),
    new_rows: pa.Table | None = None,
) -> Callable[[Callable[[str], None]], Callable[[str], None]]:
    """Register a function that writes the table of a feature at a path."""

    def register(write: Callable[[str], None]) -> Callable[[str], None]:
        SAMPLES[name] = Sample(
            name=name,
            features=features or (name,),
            write=write,
            questions=questions,
            new_rows=new_rows,
        )
        return write

    return register


def ids(*numbers: int, **columns: pa.Array) -> pa.Table:
    """Rows with a key of 64 bits."""
    return pa.table({"id": pa.array(numbers, pa.int64()), **columns})


def texts(*values: str | None) -> pa.Array:
    return pa.array(values, pa.string())


PLAIN = ids(1, 2, 3, v=texts("a", "b", None))
MORE = ids(9, v=texts("z"))


@sample("plain", where("id", ">", "int", "1"), where("v", "=", "string", "b"), new_rows=MORE)
def write_plain(uri: str) -> None:
    DeltaTable.create(uri, PLAIN.schema).append(PLAIN)


@sample("no rows", new_rows=MORE)
def write_no_rows(uri: str) -> None:
    DeltaTable.create(uri, PLAIN.schema)


@sample("deletion vectors", where("id", ">", "int", "1"), new_rows=MORE)
def write_vectors(uri: str) -> None:
    table = DeltaTable.create(uri, PLAIN.schema, properties=VECTORS)
    table.append(ids(*range(100), v=texts(*("v" * (n % 7) for n in range(100)))))
    table.delete("id % 10 = 3")


NESTED = pa.schema(
    [
        ("id", pa.int64()),
        ("old", pa.string()),
        ("gone", pa.int32()),
        ("items", pa.list_(pa.int32())),
        ("counts", pa.map_(pa.string(), pa.int32())),
        ("s", pa.struct([("a", pa.int32()), ("b", pa.string())])),
    ]
)


def _nested_rows(*numbers: int) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "id": n,
                "old": f"text {n}",
                "gone": n,
                "items": [n, None],
                "counts": [("x", n)],
                "s": None if n % 3 == 0 else {"a": n, "b": f"b{n}"},
            }
            for n in numbers
        ],
        schema=NESTED,
    )


NESTED_FILTERS = (
    where("id", ">", "int", "2"),
    where("s.a", "=", "int", "2"),
    Question(name="column: s", columns=("s",)),
    Question(name="column: items", columns=("items",)),
)


@sample("nested types", *NESTED_FILTERS, new_rows=_nested_rows(9))
def write_nested(uri: str) -> None:
    DeltaTable.create(uri, NESTED).append(_nested_rows(1, 2, 3))


def _mapped(uri: str, properties: dict[str, str]) -> None:
    table = DeltaTable.create(uri, NESTED, properties=properties)
    table.append(_nested_rows(1, 2, 3))
    table.alter("RENAME COLUMN old TO new", enable_features=True)
    table.alter("DROP COLUMN gone")
    table.append(_renamed_rows(4))


def _renamed_rows(*numbers: int) -> pa.Table:
    return (
        _nested_rows(*numbers)
        .drop_columns(["gone"])
        .rename_columns(["id", "new", "items", "counts", "s"])
    )


@sample("column mapping by name", *NESTED_FILTERS, new_rows=_renamed_rows(9))
def write_mapped_by_name(uri: str) -> None:
    _mapped(uri, MAPPED)


@sample("column mapping by id", *NESTED_FILTERS, new_rows=_renamed_rows(9))
def write_mapped_by_id(uri: str) -> None:
    _mapped(uri, {"delta.columnMapping.mode": "id"})


@sample("column mapping that came with a rename", *NESTED_FILTERS, new_rows=_renamed_rows(9))
def write_mapped_later(uri: str) -> None:
    _mapped(uri, {})


@sample(
    "column mapping without nested columns",
    where("w", "=", "string", "b"),
    new_rows=ids(9, w=texts("z")),
)
def write_mapped_flat(uri: str) -> None:
    table = DeltaTable.create(uri, PLAIN.schema, properties=MAPPED)
    table.append(PLAIN)
    table.alter("RENAME COLUMN v TO w")


@sample(
    "column mapping in a list of features",
    where("w", "=", "string", "b"),
    new_rows=ids(9, w=texts("z")),
)
def write_mapped_by_feature(uri: str) -> None:
    # Such a protocol implies no feature that a writer lacks. Any other feature of a table, such as
    # TIMESTAMP_NTZ or deletion vectors, makes it one.
    protocol = {"delta.minReaderVersion": "3", "delta.minWriterVersion": "7"}
    table = DeltaTable.create(uri, PLAIN.schema, properties=MAPPED | protocol)
    table.append(PLAIN)
    table.alter("RENAME COLUMN v TO w")


@sample(
    "column mapping, partitioned",
    where("c", "=", "string", "a"),
    where("c", "IS NULL"),
    new_rows=ids(9, c=texts("z")),
)
def write_mapped_partitions(uri: str) -> None:
    rows = ids(1, 2, c=texts("a", None))
    DeltaTable.create(uri, rows.schema, properties=MAPPED, partition_by=["c"]).append(rows)


MAPPED_LISTS = pa.schema([("id", pa.int64()), ("items", pa.list_(pa.int32()))])


@sample(
    "column mapping with a list",
    Question(name="column: items", columns=("items",)),
    new_rows=pa.Table.from_pylist([{"id": 9, "items": [9, None]}], schema=MAPPED_LISTS),
)
def write_mapped_list(uri: str) -> None:
    rows = [{"id": n, "items": items} for n, items in enumerate([[1, None], [2], None])]
    table = DeltaTable.create(uri, MAPPED_LISTS, properties=MAPPED)
    table.append(pa.Table.from_pylist(rows, schema=MAPPED_LISTS))


@sample("column mapping with a list of structs")
def write_mapped_structs(uri: str) -> None:
    item = pa.struct([("a", pa.int32()), ("b", pa.string())])
    schema = pa.schema([("id", pa.int64()), ("items", pa.list_(item))])
    rows = [{"id": n, "items": [{"a": n, "b": "x"}]} for n in range(3)]
    table = DeltaTable.create(uri, schema, properties=MAPPED)
    table.append(pa.Table.from_pylist(rows, schema=schema))


@sample("column dropped before another", where("v", "=", "string", "a"), where("v", "IS NULL"))
def write_dropped(uri: str) -> None:
    """Files before have a column that the schema lacks, before one that it has."""
    rows = ids(1, 2, 3, gone=texts("x", None, "y"), v=texts("a", "b", None))
    table = DeltaTable.create(uri, rows.schema, properties=MAPPED)
    table.append(rows)
    table.alter("DROP COLUMN gone")
    table.append(ids(4, v=texts("new")))


@sample("column dropped and added again", where("v", "=", "string", "a"), where("v", "IS NULL"))
def write_dropped_again(uri: str) -> None:
    """Files before have values of the dropped column under the name of the new one."""
    table = DeltaTable.create(uri, PLAIN.schema)
    table.append(PLAIN)
    table.alter("DROP COLUMN v", enable_features=True)
    table.alter("ADD COLUMN v STRING")
    table.append(ids(4, v=texts("new")))


def _widened(name: str, before: pa.Array, new_type: str, after: pa.Array, *asked: Question) -> None:
    @sample(
        f"widened: {name}", *asked, features=("type widening",), new_rows=pa.table({"n": after})
    )
    def write(uri: str) -> None:
        table = DeltaTable.create(uri, pa.schema([("n", before.type)]), properties=WIDENING)
        table.append(pa.table({"n": before}))
        table.alter(f"ALTER COLUMN n TYPE {new_type}")
        table.append(pa.table({"n": after}))


INTS = pa.array([1, 100, None, 2147483647], pa.int32())
_widened(
    "byte to short",
    pa.array([1, 127, None], pa.int8()),
    "SMALLINT",
    pa.array([300], pa.int16()),
    where("n", ">", "int", "126"),
    where("n", "<", "int", "200"),
)
_widened(
    "int to bigint",
    INTS,
    "BIGINT",
    pa.array([2**40], pa.int64()),
    where("n", ">", "int", "100"),
    where("n", "<", "int", str(2**39)),
)
_widened(
    "int to double",
    INTS,
    "DOUBLE",
    pa.array([1.5], pa.float64()),
    where("n", ">", "double", "2147483646.5"),
    where("n", "<", "double", "1.25"),
)
_widened(
    "int to decimal",
    INTS,
    "DECIMAL(12,2)",
    pa.array([D("1.50")], pa.decimal128(12, 2)),
    where("n", ">", "decimal(12,2)", "2147483646.50"),
    where("n", "<", "decimal(12,2)", "1.25"),
)
_widened(
    "bigint to decimal",
    pa.array([1, 2**62], pa.int64()),
    "DECIMAL(22,2)",
    pa.array([D("1.50")], pa.decimal128(22, 2)),
    where("n", ">", "decimal(22,2)", f"{2**62 - 1}.50"),
    where("n", "<", "decimal(22,2)", "1.25"),
)
_widened(
    "float to double",
    pa.array([0.5, 1.1], pa.float32()),
    "DOUBLE",
    pa.array([1.1], pa.float64()),
    where("n", ">", "double", "1.1"),
    where("n", "<=", "double", "1.1"),
)
for _before, _after, _sql in (
    ("byte", "int", "INT"),
    ("byte", "bigint", "BIGINT"),
    ("byte", "double", "DOUBLE"),
    ("byte", "decimal", "DECIMAL(12,2)"),
    ("short", "int", "INT"),
    ("short", "bigint", "BIGINT"),
    ("short", "double", "DOUBLE"),
    ("short", "decimal", "DECIMAL(12,2)"),
):
    _old_type = {"byte": pa.int8(), "short": pa.int16()}[_before]
    _new_type, _type, _constants = {
        "int": (pa.int32(), "int", ("126", "200")),
        "bigint": (pa.int64(), "int", ("126", str(2**39))),
        "double": (pa.float64(), "double", ("126.5", "1.25")),
        "decimal": (pa.decimal128(12, 2), "decimal(12,2)", ("126.50", "1.25")),
    }[_after]
    _widened(
        f"{_before} to {_after}",
        pa.array([1, 127, None], _old_type),
        _sql,
        pa.array([100_000]).cast(pa.float64()).cast(_new_type),
        where("n", ">", _type, _constants[0]),
        where("n", "<", _type, _constants[1]),
    )
_widened(
    "decimal precision",
    pa.array([D("1.1"), D("9.9")], pa.decimal128(3, 1)),
    "DECIMAL(10,1)",
    pa.array([D("12345.6")], pa.decimal128(10, 1)),
    where("n", ">", "decimal(10,1)", "9.8"),
    where("n", "<", "decimal(10,1)", "12345.6"),
)
_widened(
    "decimal scale",
    pa.array([D("1.1"), D("9.9")], pa.decimal128(3, 1)),
    "DECIMAL(6,3)",
    pa.array([D("1.155")], pa.decimal128(6, 3)),
    where("n", ">", "decimal(6,3)", "9.899"),
    where("n", "<", "decimal(6,3)", "1.151"),
)
_widened(
    "date to timestamp_ntz",
    pa.array([dt.date(2023, 12, 31), dt.date(2024, 1, 1)], pa.date32()),
    "TIMESTAMP_NTZ",
    pa.array([dt.datetime(2024, 1, 1, 13)], pa.timestamp("us")),
    where("n", "<", "timestamp_ntz", "2024-01-01 12:00:00"),
    where("n", ">", "timestamp_ntz", "2023-12-31 12:00:00"),
)


@sample("type widening without a wider column", features=("type widening",), new_rows=MORE)
def write_widening_enabled(uri: str) -> None:
    DeltaTable.create(uri, PLAIN.schema, properties=WIDENING).append(PLAIN)


@sample("widened: in a struct", where("s.n", ">", "int", "1"), features=("type widening",))
def write_widened_nested(uri: str) -> None:
    before = pa.struct([("n", pa.int32())])
    after = pa.struct([("n", pa.int64())])
    table = DeltaTable.create(uri, pa.schema([("s", before)]), properties=WIDENING)
    table.append(pa.table({"s": pa.array([{"n": 1}, {"n": 2}, None], before)}))
    table.alter("ALTER COLUMN s.n TYPE BIGINT")
    table.append(pa.table({"s": pa.array([{"n": 2**40}], after)}))


@sample(
    "widened: in a struct to a decimal",
    where("s.n", "<", "decimal(12,2)", "1.25"),
    features=("type widening",),
)
def write_widened_nested_decimal(uri: str) -> None:
    before = pa.struct([("n", pa.int32())])
    table = DeltaTable.create(uri, pa.schema([("s", before)]), properties=WIDENING)
    table.append(pa.table({"s": pa.array([{"n": 1}, {"n": 2}, None], before)}))
    table.alter("ALTER COLUMN s.n TYPE DECIMAL(12,2)")


@sample("widened: in a list and a map", features=("type widening",))
def write_widened_elements(uri: str) -> None:
    schema = pa.schema([("l", pa.list_(pa.int32())), ("m", pa.map_(pa.string(), pa.int32()))])
    table = DeltaTable.create(uri, schema, properties=WIDENING)
    table.append(pa.Table.from_pylist([{"l": [1, None], "m": [("a", 1)]}], schema=schema))
    table.alter("ALTER COLUMN l.element TYPE BIGINT")
    table.alter("ALTER COLUMN m.value TYPE BIGINT")


@sample(
    "widened: partition column",
    where("n", ">", "int", "1"),
    features=("type widening",),
    new_rows=ids(9, n=pa.array([2**40], pa.int64())),
)
def write_widened_partition(uri: str) -> None:
    rows = ids(1, 2, n=pa.array([1, 2], pa.int32()))
    table = DeltaTable.create(uri, rows.schema, properties=WIDENING, partition_by=["n"])
    table.append(rows)
    table.alter("ALTER COLUMN n TYPE BIGINT")


DEEP = pa.struct(
    [
        ("at", pa.timestamp("us", "UTC")),
        ("t", pa.struct([("u", pa.int32()), ("d", pa.decimal128(10, 2))])),
        ("tags", pa.list_(pa.string())),
    ]
)


@sample(
    "fields of structs in structs",
    where("s.t.u", ">", "int", "1"),
    where("s.t.d", "=", "decimal(10,2)", "2.50"),
    where("s.t.u", "IS NULL"),
    where("s.at", ">=", "timestamp", "2024-01-01 00:00:02"),
)
def write_deep(uri: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("s", DEEP)])
    table = DeltaTable.create(uri, schema)
    for n in range(4):
        value = {
            "at": dt.datetime(2024, 1, 1, 0, 0, n, tzinfo=UTC),
            "t": {"u": n, "d": D("1.25") * n} if n % 3 else None,
            "tags": ["a", None],
        }
        table.append(pa.Table.from_pylist([{"id": n, "s": value}], schema=schema))


@sample(
    "lists and maps of structs",
    where("id", ">", "int", "1"),
    Question(name="column: items", columns=("items",)),
)
def write_list_of_structs(uri: str) -> None:
    item = pa.struct([("a", pa.int32()), ("b", pa.string())])
    fields = [("items", pa.list_(item)), ("named", pa.map_(pa.string(), item))]
    schema = pa.schema([("id", pa.int64()), *fields])
    row = {"items": [{"a": 1, "b": None}, None], "named": [("x", {"a": 2, "b": "z"})]}
    rows = [{"id": 1, **row}, {"id": 2, "items": [], "named": None}]
    DeltaTable.create(uri, schema).append(pa.Table.from_pylist(rows, schema=schema))


def _typed(name: str, values: pa.Array, *asked: Question, partitioned: bool = False) -> None:
    title = f"partitioned by {name}" if partitioned and "partition" not in name else name
    rows = ids(*range(len(values)), c=values)
    if partitioned and values.null_count:
        asked += (where("c", "IS NULL"),)

    # Not each writer stores several partitions at once, which has a table of its own.
    @sample(title, *asked, new_rows=rows.slice(0, 1) if partitioned else rows)
    def write(uri: str) -> None:
        table = DeltaTable.create(uri, rows.schema, partition_by=["c"] if partitioned else None)
        for number in range(len(rows)):
            table.append(rows.slice(number, 1))


def _instant(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=UTC)


TYPES: dict[str, tuple[pa.Array, tuple[Question, ...]]] = {
    "string": (
        texts("a", "ü/%:= x", "x" * 40, "x" * 39 + "y", None),
        (where("c", "=", "string", "x" * 39 + "y"), where("c", ">", "string", "x" * 32)),
    ),
    "int": (pa.array([1, -5, None], pa.int32()), (where("c", "<", "int", "0"),)),
    "boolean": (pa.array([True, False, None]), (where("c", "=", "boolean", "true"),)),
    "double": (
        pa.array([0.5, -1.5, 1e300, None]),
        (where("c", ">", "double", "0.25"), where("c", "=", "double", "-1.5")),
    ),
    "date": (
        pa.array([dt.date(2024, 1, 1), dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
        (where("c", ">=", "date", "2024-01-01"), where("c", "<", "date", "1900-01-01")),
    ),
    "timestamp": (
        pa.array(
            [_instant("2024-01-01 12:00:00.123456"), _instant("1900-01-01"), None],
            pa.timestamp("us", "UTC"),
        ),
        (
            where("c", "=", "timestamp", "2024-01-01 12:00:00.123456"),
            where("c", "<", "timestamp", "2024-01-01 12:00:00.123457"),
        ),
    ),
    "timestamp_ntz": (
        pa.array([dt.datetime(2024, 1, 1, 12, 0, 0, 123456), None], pa.timestamp("us")),
        (
            where("c", "=", "timestamp_ntz", "2024-01-01 12:00:00.123456"),
            where("c", "<", "timestamp_ntz", "2024-01-01 12:00:00.123457"),
        ),
    ),
    "decimal": (
        pa.array([D("0.0000000001"), D("-12345678901234567890.5"), None], pa.decimal128(38, 10)),
        (
            where("c", "=", "decimal(38,10)", "0.0000000001"),
            where("c", "<", "decimal(38,10)", "-1.0000000000"),
        ),
    ),
    "binary": (pa.array([b"\x01\x02", b"abc", None]), (where("c", "=", "binary", "616263"),)),
}
TYPES |= {
    "byte": (pa.array([1, -128, None], pa.int8()), (where("c", "<", "int", "0"),)),
    "short": (pa.array([1, -32768, None], pa.int16()), (where("c", "<", "int", "0"),)),
    "bigint": (
        pa.array([2**53 + 1, -(2**63), None], pa.int64()),
        (where("c", "=", "int", str(2**53 + 1)), where("c", "<", "int", str(1 - 2**63))),
    ),
    "float": (
        pa.array([0.1, -1.5, None], pa.float32()),
        (where("c", "<", "double", "0.0"), where("c", ">", "double", "0.05")),
    ),
}
for _name, (_values, _asked) in TYPES.items():
    _typed(_name, _values, *_asked)
    _typed(_name, _values, *_asked, partitioned=True)
for _partitioned in (False, True):
    _typed(
        "minus zero",
        pa.array([-0.0, 1.0]),
        where("c", "=", "double", "0.0"),
        where("c", ">=", "double", "0.0"),
        where("c", "<", "double", "0.0"),
        partitioned=_partitioned,
    )
_typed("partition values null and empty", texts("a", None, ""), partitioned=True)
NAN_FILTERS = (
    where("c", ">", "double", "5.0"),
    where("c", "<", "double", "2.0"),
    where("c", "=", "double", "NaN"),
    where("c", ">", "double", "Infinity"),
)
_typed("NaN and infinity", pa.array([1.0, float("nan"), float("inf"), float("-inf")]), *NAN_FILTERS)
INFINITE = ids(1, 2, c=pa.array([float("inf"), float("-inf")]))


@sample(
    "files of infinity alone",
    where("c", ">", "double", "5.0"),
    where("c", "<", "double", "2.0"),
    new_rows=INFINITE.slice(0, 1),
)
def write_infinity(uri: str) -> None:
    table = DeltaTable.create(uri, INFINITE.schema)
    for number in range(2):
        table.append(INFINITE.slice(number, 1))


SPECIAL = ("a b", " a ", "50%", "%20", "10:30", "x=1", "a/b", "ü é", "a+b&c", "#?", "'q'", "[1]{2}")


@sample(
    "partition values with special characters",
    # Programs differ in how SQL quotes a quote.
    *(where("c", "=", "string", value) for value in SPECIAL if "'" not in value),
    where("c", ">", "string", "a"),
    new_rows=ids(99, c=texts("50% a=1 10:30")),
)
def write_special_partitions(uri: str) -> None:
    rows = ids(*range(len(SPECIAL)), c=texts(*SPECIAL))
    DeltaTable.create(uri, rows.schema, partition_by=["c"]).append(rows)


_DAYS = pa.array([dt.date(2024, 1, 1), dt.date(2024, 1, 2), None, dt.date(2024, 1, 2)], pa.date32())


@sample(
    "partitioned by two columns",
    where("day", ">=", "date", "2024-01-02"),
    where("kind", "=", "string", "b"),
    where("id", ">", "int", "1"),
    where("kind", "IS NULL"),
    new_rows=ids(9, day=_DAYS.slice(0, 1), kind=texts("z"), n=pa.array([9], pa.int32())),
)
def write_two_partitions(uri: str) -> None:
    numbers = pa.array(range(4), pa.int32())
    rows = ids(0, 1, 2, 3, day=_DAYS, kind=texts("a", "b", "b", None), n=numbers)
    DeltaTable.create(uri, rows.schema, partition_by=["day", "kind"]).append(rows)


@sample("append to two partitions", new_rows=ids(8, 9, c=texts("b", "c")))
def write_partitions(uri: str) -> None:
    rows = ids(1, 2, c=texts("a", "b"))
    DeltaTable.create(uri, rows.schema, partition_by=["c"]).append(rows)


@sample("NaN beside others in a file", *NAN_FILTERS)
def write_nan(uri: str) -> None:
    rows = ids(1, 2, 3, c=pa.array([1.0, 9.0, float("nan")]))
    DeltaTable.create(uri, rows.schema).append(rows)


@sample(
    "column added later",
    where("w", "IS NULL"),
    where("w", "=", "int", "5"),
    where("w", "% 2 =", "int", "1"),
    new_rows=ids(9, v=texts("z"), w=pa.array([6], pa.int32())),
)
def write_added(uri: str) -> None:
    table = DeltaTable.create(uri, PLAIN.schema)
    table.append(PLAIN)
    table.alter("ADD COLUMN w INT")
    table.append(ids(4, v=texts("d"), w=pa.array([5], pa.int32())))


WITHOUT_FIELD = pa.struct([("a", pa.int32())])
WITH_FIELD = pa.struct([("a", pa.int32()), ("b", pa.int32())])


@sample(
    "field of a struct added later",
    where("s.b", "IS NULL"),
    where("s.b", "=", "int", "5"),
    where("s.a", ">", "int", "1"),
    Question(name="column: s", columns=("s",)),
    new_rows=ids(9, s=pa.array([{"a": 9, "b": 6}], WITH_FIELD)),
)
def write_added_field(uri: str) -> None:
    rows = ids(1, 2, s=pa.array([{"a": 1}, {"a": 2}], WITHOUT_FIELD))
    table = DeltaTable.create(uri, rows.schema)
    table.append(rows)
    table.alter("ADD COLUMN s.b INT")
    table.append(ids(3, s=pa.array([{"a": 3, "b": 5}], WITH_FIELD)))


@sample("default for existing rows", where("w", "=", "int", "5"), new_rows=MORE)
def write_lazy_default(uri: str) -> None:
    table = DeltaTable.create(uri, PLAIN.schema)
    table.append(PLAIN)
    table.alter("ADD COLUMN w INT DEFAULT 5", existing_rows="lazy", enable_features=True)


LONG = "x" * 31 + "\U0001f600" * 3
ENDLESS = "\U0010ffff" * 40


@sample(
    "long strings",
    where("c", "=", "string", LONG),
    where("c", ">", "string", "x" * 31 + "\U0001f600"),
    where("c", ">=", "string", ENDLESS),
    where("c", "<", "string", "x" * 31 + "y"),
    new_rows=ids(9, c=texts("x" * 4000)),
)
def write_long_strings(uri: str) -> None:
    table = DeltaTable.create(uri, ids(1, c=texts("")).schema)
    for number, text in enumerate((LONG, ENDLESS, "x" * 31 + "\uffff", "x" * 32)):
        table.append(ids(number, c=texts(text)))


@sample("variant", where("id", ">", "int", "1"), Question(name="column: id", columns=("id",)))
def write_variant(uri: str) -> None:
    table = DeltaTable.create(uri, [Column("id", "BIGINT"), Column("v", "VARIANT")])
    table.append(ids(1, 2, 3, v=variants_from_json(texts('{"a": 1}', "[1, 2]", None))))


@sample("column default", new_rows=MORE)
def write_default(uri: str) -> None:
    columns = [Column("id", "BIGINT"), Column("v", "STRING"), Column("w", "INT", default="7")]
    DeltaTable.create(uri, columns).append(PLAIN)


@sample("generated column", new_rows=ids(9))
def write_generated(uri: str) -> None:
    columns = [Column("id", "BIGINT"), Column("twice", "BIGINT", generated_as="id * 2")]
    DeltaTable.create(uri, columns).append(ids(1, 2))


@sample(
    "partitioned by a generated column",
    where("at", ">=", "timestamp", "2024-01-02 00:00:00"),
    where("day", "=", "date", "2024-01-02"),
    new_rows=ids(9, at=pa.array([dt.datetime(2024, 1, 3, tzinfo=UTC)], pa.timestamp("us", "UTC"))),
)
def write_generated_partition(uri: str) -> None:
    day = Column("day", "DATE", generated_as="CAST(at AS DATE)")
    columns = [Column("id", "BIGINT"), Column("at", "TIMESTAMP"), day]
    times = [dt.datetime(2024, 1, n, 12, tzinfo=UTC) for n in (1, 2)]
    rows = ids(1, 2, at=pa.array(times, pa.timestamp("us", "UTC")))
    DeltaTable.create(uri, columns, partition_by=["day"]).append(rows)


@sample("identity column", new_rows=pa.table({"v": texts("z")}))
def write_identity(uri: str) -> None:
    columns = [Column("id", "BIGINT", nullable=False, identity=Identity()), Column("v", "STRING")]
    DeltaTable.create(uri, columns).append(pa.table({"v": texts("a", "b")}))


@sample("CHECK constraint", new_rows=MORE)
def write_constraint(uri: str) -> None:
    table = DeltaTable.create(uri, PLAIN.schema)
    table.alter("ADD CONSTRAINT small CHECK (id < 100)")
    table.append(PLAIN)


@sample("row against a CHECK", features=("CHECK constraint",), new_rows=ids(500, v=texts("no")))
def write_constraint_again(uri: str) -> None:
    write_constraint(uri)


@sample("NOT NULL column", new_rows=MORE)
def write_not_null(uri: str) -> None:
    columns = [Column("id", "BIGINT", nullable=False), Column("v", "STRING")]
    DeltaTable.create(uri, columns).append(PLAIN)


@sample("V2 checkpoint", new_rows=MORE)
def write_v2_checkpoint(uri: str) -> None:
    table = DeltaTable.create(uri, PLAIN.schema, properties={"delta.checkpointPolicy": "v2"})
    table.append(PLAIN)
    table.checkpoint()


@sample("statistics as structs only", where("id", ">", "int", "1"), new_rows=MORE)
def write_struct_statistics(uri: str) -> None:
    properties = {
        "delta.checkpoint.writeStatsAsStruct": "true",
        "delta.checkpoint.writeStatsAsJson": "false",
    }
    table = DeltaTable.create(uri, PLAIN.schema, properties=properties)
    table.append(PLAIN)
    table.checkpoint()


_EVERY_TYPE = {
    "string": texts("a", "x" * 40),
    "day": pa.array([dt.date(2024, 1, 1), dt.date(1900, 1, 1)], pa.date32()),
    "at": pa.array([_instant("2024-01-01 12:00:00.123456"), None], pa.timestamp("us", "UTC")),
    "local": pa.array([dt.datetime(2024, 1, 1, 12, 0, 0, 123456), None], pa.timestamp("us")),
    "exact": pa.array([D("0.0000000001"), D("-1.5")], pa.decimal128(38, 10)),
    "number": pa.array([0.5, None]),
}


@sample(
    "checkpoint with statistics and partition values as structs",
    where("day", "<", "date", "2000-01-01"),
    where("at", "=", "timestamp", "2024-01-01 12:00:00.123456"),
    where("local", "<", "timestamp_ntz", "2024-01-01 12:00:00.123457"),
    where("exact", "<", "decimal(38,10)", "0.0000000000"),
    where("string", "=", "string", "x" * 40),
    where("number", "IS NULL"),
    new_rows=ids(9, **{name: values.slice(0, 1) for name, values in _EVERY_TYPE.items()}),
)
def write_struct_checkpoint(uri: str) -> None:
    rows = ids(1, 2, **_EVERY_TYPE)
    properties = {
        "delta.checkpoint.writeStatsAsStruct": "true",
        "delta.checkpoint.writeStatsAsJson": "false",
    }
    table = DeltaTable.create(uri, rows.schema, properties=properties, partition_by=["day", "at"])
    table.append(rows)
    table.checkpoint()


@sample("row tracking", new_rows=MORE)
def write_row_tracking(uri: str) -> None:
    table = DeltaTable.create(uri, PLAIN.schema, properties={"delta.enableRowTracking": "true"})
    table.append(PLAIN)
    table.update({"v": "'new'"}, where="id = 1")


@sample(
    "in-commit timestamps",
    Question(name="version 1", version=1),
    new_rows=MORE,
)
def write_in_commit_timestamps(uri: str) -> None:
    properties = {"delta.enableInCommitTimestamps": "true"}
    table = DeltaTable.create(uri, PLAIN.schema, properties=properties)
    table.append(PLAIN)
    table.append(MORE)


@sample("clustering", where("id", ">", "int", "1"), new_rows=MORE)
def write_clustered(uri: str) -> None:
    table = DeltaTable.create(uri, PLAIN.schema, cluster_by=["id"])
    table.append(PLAIN)
    table.optimize()


@sample("VACUUM protocol check", new_rows=MORE)
def write_vacuum_protocol_check(uri: str) -> None:
    table = DeltaTable.create(uri, PLAIN.schema)
    table.append(PLAIN)
    table.enable_feature("vacuumProtocolCheck")


@sample("change data feed", Question(name="changes", kind="changes", version=1), new_rows=MORE)
def write_feed(uri: str) -> None:
    table = DeltaTable.create(uri, PLAIN.schema, properties=FEED)
    table.append(PLAIN)
    table.update({"v": "'new'"}, where="id = 1")
    table.delete("id = 2")


@sample(
    "change data feed with deletion vectors",
    Question(name="changes", kind="changes", version=1),
    features=("change data feed", "deletion vectors"),
)
def write_feed_with_vectors(uri: str) -> None:
    table = DeltaTable.create(uri, PLAIN.schema, properties=FEED | VECTORS)
    table.append(PLAIN)
    table.delete("id = 2")


@sample(
    "change data feed with column mapping",
    Question(name="changes", kind="changes", version=1),
    features=("change data feed", "column mapping"),
)
def write_feed_with_mapping(uri: str) -> None:
    table = DeltaTable.create(uri, PLAIN.schema, properties=FEED | MAPPED)
    table.append(PLAIN)
    table.update({"v": "'new'"}, where="id = 1")
    table.delete("id = 2")


@sample(
    "change data feed, partitioned",
    Question(name="changes", kind="changes", version=1),
    features=("change data feed",),
)
def write_partitioned_feed(uri: str) -> None:
    rows = ids(1, 2, 3, v=texts("a", "b", None))
    table = DeltaTable.create(uri, rows.schema, properties=FEED, partition_by=["v"])
    table.append(rows)
    table.update({"v": "'new'"}, where="id = 1")
    table.delete("v IS NULL")


CHANGES = Question(name="changes", kind="changes", version=1)


@sample("change data feed with a column added", CHANGES, features=("change data feed",))
def write_feed_with_added_column(uri: str) -> None:
    table = DeltaTable.create(uri, PLAIN.schema, properties=FEED)
    table.append(PLAIN)
    table.delete("id = 2")
    table.alter("ADD COLUMN w INT")
    table.append(ids(4, v=texts("d"), w=pa.array([5], pa.int32())))
    table.update({"w": "7"}, where="id = 1")


@sample("change data feed with a wider column", CHANGES, features=("change data feed",))
def write_feed_with_wider_column(uri: str) -> None:
    rows = ids(1, 2, n=pa.array([1, 2], pa.int32()))
    table = DeltaTable.create(uri, rows.schema, properties=FEED | WIDENING)
    table.append(rows)
    table.delete("id = 2")
    table.alter("ALTER COLUMN n TYPE BIGINT")
    table.append(ids(3, n=pa.array([2**40], pa.int64())))
    table.update({"n": "n + 1"}, where="id = 1")


@sample(
    "change data feed with a renamed column",
    # No version of the schema has the names of all commits.
    Question(name="changes", kind="changes", version=4),
    features=("change data feed",),
)
def write_feed_with_renamed_column(uri: str) -> None:
    table = DeltaTable.create(uri, PLAIN.schema, properties=FEED | MAPPED)
    table.append(PLAIN)
    table.delete("id = 2")
    table.alter("RENAME COLUMN v TO w")
    table.append(ids(4, w=texts("d")))
    table.update({"w": "'new'"}, where="id = 1")


@sample("shallow clone", new_rows=MORE)
def write_clone(uri: str) -> None:
    write_plain(f"{uri}.source")
    DeltaTable(f"{uri}.source").clone(uri, deep=False)


@sample("zstd", new_rows=MORE)
def write_zstd(uri: str) -> None:
    properties = {"delta.parquet.compression.codec": "zstd"}
    DeltaTable.create(uri, PLAIN.schema, properties=properties).append(PLAIN)


@sample("old versions", Question(name="version 1", version=1))
def write_versions(uri: str) -> None:
    table = DeltaTable.create(uri, PLAIN.schema)
    table.append(PLAIN)
    table.append(MORE)


@sample("old schema", Question(name="version 1", version=1))
def write_old_schema(uri: str) -> None:
    write_added(uri)


@sample("restored", Question(name="version 2", version=2), new_rows=MORE)
def write_restored(uri: str) -> None:
    table = DeltaTable.create(uri, PLAIN.schema)
    table.append(PLAIN)
    table.overwrite(MORE)
    table.restore(1)


@sample(
    "overwritten with another schema",
    Question(name="version 1", version=1),
    new_rows=ids(9, w=pa.array([9])),
)
def write_other_schema(uri: str) -> None:
    table = DeltaTable.create(uri, PLAIN.schema)
    table.append(PLAIN)
    table.overwrite(ids(4, w=pa.array([5])), schema_mode="overwrite")


@sample("Z-order", where("id", ">", "int", "1"), where("v", "=", "string", "b"), new_rows=MORE)
def write_ordered(uri: str) -> None:
    write_versions(uri)
    DeltaTable(uri).optimize(zorder_by=["id", "v"])


@sample("log of which the beginning is gone", Question(name="version 2", version=2), new_rows=MORE)
def write_cleaned_log(uri: str) -> None:
    table = DeltaTable.create(uri, PLAIN.schema)
    table.append(PLAIN)
    table.append(MORE)
    table.checkpoint()
    table.append(ids(4, v=texts("d")))
    for version in range(2):
        for suffix in ("json", "crc"):
            (Path(uri) / "_delta_log" / f"{version:020}.{suffix}").unlink(missing_ok=True)


@sample("checkpoint protection", where("id", ">", "int", "1"), new_rows=MORE)
def write_dropped_feature(uri: str) -> None:
    """What a feature that was dropped leaves, where older versions are kept."""
    write_vectors(uri)
    DeltaTable(uri).drop_feature("deletionVectors")


_COPIED = "2024-05-01T00:00:00Z"


@sample("copied log, time travel by timestamp", Question(name="timestamp", timestamp=_COPIED))
def write_copied(uri: str) -> None:
    """Log files that a copy gave other times: version 1 was the latest at the asked time."""
    write_versions(uri)
    log = Path(uri) / "_delta_log"
    for version, day in ((0, 1), (1, 2), (2, 9)):
        at = dt.datetime(2024, 4 if version < 2 else 5, day, tzinfo=UTC).timestamp()
        os.utime(log / f"{version:020}.json", (at, at))


@sample(
    "in-commit timestamps on a copied log, time travel by timestamp",
    Question(name="timestamp", timestamp=_COPIED),
)
def write_copied_in_commit_timestamps(uri: str) -> None:
    """The commits say that version 1 was the latest; the times of the files say version 2."""
    table = DeltaTable.create(
        uri, PLAIN.schema, properties={"delta.enableInCommitTimestamps": "true"}
    )
    table.append(PLAIN)
    table.append(MORE)
    for version, day in ((0, 1), (1, 2), (2, 9)):
        at = dt.datetime(2024, 4 if version < 2 else 5, day, tzinfo=UTC)
        commit = Path(uri) / "_delta_log" / f"{version:020}.json"
        first, *others = commit.read_text().splitlines()
        info = json.loads(first)
        # Its checksum is that of the text before.
        del info["commitInfo"]["contentCrc32"]
        info["commitInfo"]["inCommitTimestamp"] = int(at.timestamp() * 1000)
        commit.write_text("\n".join((json.dumps(info), *others)) + "\n")
        copied = dt.datetime(2024, 4, 1 + version, tzinfo=UTC).timestamp()
        os.utime(commit, (copied, copied))
    for checksum in (Path(uri) / "_delta_log").glob("*.crc"):
        checksum.unlink()


@sample("CHAR and VARCHAR", where("c", "=", "string", "ab   "), new_rows=ids(9, c=texts("cd")))
def write_char(uri: str) -> None:
    """As CREATE TABLE of Spark declares it; this library declares no such column."""
    DeltaTable.create(uri, ids(1, c=texts("")).schema)
    commit = Path(uri) / "_delta_log" / f"{0:020}.json"
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    for line in lines:
        if "commitInfo" in line:
            line["commitInfo"].pop("contentCrc32", None)
        if "metaData" in line:
            schema = json.loads(line["metaData"]["schemaString"])
            schema["fields"][1]["metadata"] = {"__CHAR_VARCHAR_TYPE_STRING": "char(5)"}
            line["metaData"]["schemaString"] = json.dumps(schema)
    commit.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for checksum in (Path(uri) / "_delta_log").glob("*.crc"):
        checksum.unlink()
    DeltaTable(uri).append(ids(1, c=texts("ab")))


@sample("log compaction", new_rows=MORE)
def write_compaction(uri: str) -> None:
    table = DeltaTable.create(uri, PLAIN.schema)
    table.append(PLAIN)
    table.append(MORE)
    log = Path(uri) / "_delta_log"
    lines = "".join((log / f"{version:020}.json").read_text() for version in (1, 2))
    kept = [line for line in lines.splitlines() if '"add"' in line]
    (log / f"{1:020}.{2:020}.compacted.json").write_text("\n".join(kept) + "\n")


DOTTED = pa.schema([("id", pa.int64()), ("a b", pa.int64()), ("x,y", pa.string())])


@sample(
    "names with spaces and commas",
    where("a b", ">", "int", "1"),
    features=("column mapping without nested columns",),
)
def write_names(uri: str) -> None:
    table = DeltaTable.create(uri, DOTTED, properties=MAPPED)
    table.append(pa.Table.from_pylist([{"id": 1, "a b": 5, "x,y": "v"}], schema=DOTTED))


@sample(
    "column c.d beside a struct c",
    where("c\\.d", ">", "int", "150"),
    where("c.d", "<", "int", "150"),
    features=("column mapping by name",),
)
def write_dotted(uri: str) -> None:
    schema = pa.schema([("c.d", pa.int64()), ("c", pa.struct([("d", pa.int64())]))])
    table = DeltaTable.create(uri, schema, properties=MAPPED)
    for number in (100, 200):
        row = {"c.d": number, "c": {"d": 300 - number}}
        table.append(pa.Table.from_pylist([row], schema=schema))


@sample("mapping, vectors and wider types", where("m", ">", "int", "1"))
def write_all_three(uri: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("n", pa.int32())])
    table = DeltaTable.create(uri, schema, properties=MAPPED | VECTORS | WIDENING)
    table.append(ids(*range(8), n=pa.array(range(8), pa.int32())))
    table.alter("ALTER COLUMN n TYPE BIGINT")
    table.alter("RENAME COLUMN n TO m")
    table.delete("id = 5")


def write_samples(directory: Path, names: list[str]) -> dict[str, str]:
    """Write the tables; the location of each."""
    shutil.rmtree(directory, ignore_errors=True)
    places = {}
    for number, name in enumerate(names):
        places[name] = str(directory / f"t{number:03}")
        Path(places[name]).parent.mkdir(parents=True, exist_ok=True)
        SAMPLES[name].write(places[name])
    return places
