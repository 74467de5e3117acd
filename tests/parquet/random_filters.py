"""Random filters on a table, by its own scan and by DuckDB over all of its decoded rows.

    python -m tests.parquet.random_filters 10000 7

The line reads the golden tables and random ones by 10,000 filters, and prints each filter whose scan
gave other rows.
"""

from __future__ import annotations

import datetime as dt
import math
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dagster_delta import DeltaTable
from dagster_delta.errors import DeltaError
from dagster_delta.protocol.schema import inner_types
from dagster_delta.sql.types import collation_of, is_primitive
from tests.conftest import GOLDEN_TABLES

MAX_ROWS = 200_000
_MOMENT = dt.datetime(1970, 1, 1)
_CALENDAR_MICROS = 250_000_000_000_000_000
"""Microseconds from the epoch that Python's calendar holds, with room for steps."""


class Leaf(NamedTuple):
    """A column, or a field of structs, that filters compare."""

    spark: str
    name: str
    """In the table of the second reader."""
    values: pa.Array


class Constant(NamedTuple):
    """The same constant in Spark's SQL and in DuckDB's."""

    spark: str
    duck: str


class Condition(NamedTuple):
    """The same condition in Spark's SQL and in DuckDB's."""

    spark: str
    duck: str


class SecondReader:
    """All rows of a table, decoded without a filter, and DuckDB over them."""

    def __init__(self, table: DeltaTable) -> None:
        self.snapshot = table.snapshot()
        self.rows = self.snapshot.scan().to_arrow().combine_chunks()
        leaves = [leaf for name in self.rows.column_names for leaf in self._leaves(name)]
        self.leaves = [leaf._replace(name=f"c{index}") for index, leaf in enumerate(leaves)]
        inputs = {leaf.name: leaf.values for leaf in self.leaves}
        self._connection = duckdb.connect(config={"threads": 1})
        numbers = pa.array(range(self.rows.num_rows), pa.int64())
        self._connection.register("rows", pa.table({"number": numbers, **inputs}))

    def _leaves(self, name: str) -> Iterator[Leaf]:
        def visit(path: str, values: pa.Array) -> Iterator[Leaf]:
            if pa.types.is_struct(values.type):
                if {"metadata", "value"} <= {field.name for field in values.type}:
                    return  # A variant.
                for index, field in enumerate(values.type):
                    child = pc.struct_field(values, [index])
                    yield from visit(f"{path}.{_quoted(field.name)}", child)
                return
            stored = _stored(values)
            if stored is not None:
                yield Leaf(path, "", stored)

        field = self.snapshot.schema.field(name)
        is_shape = not inner_types(field.data_type) and not is_primitive(field.data_type)
        if is_shape or collation_of(field) is not None:
            return  # Only Spark compares such values.
        column = self.rows.column(name)
        yield from visit(
            _quoted(name),
            pa.concat_arrays(column.chunks) if len(column) else pa.nulls(0, column.type),
        )

    def expect(self, condition: Condition, columns: list[str]) -> pa.Table:
        """The rows for which the condition is true, in order."""
        sql = f"SELECT number FROM rows WHERE {condition.duck} ORDER BY number"
        numbers = self._connection.sql(sql).to_arrow_table()["number"]
        return self.rows.select(columns).take(numbers)

    def close(self) -> None:
        self._connection.close()


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _stored(values: pa.Array) -> pa.Array | None:
    """The values in a type that DuckDB compares as Spark does; None if there is none."""
    kind, types = values.type, pa.types
    if types.is_timestamp(kind):
        return values.cast(pa.timestamp("us", kind.tz)).view(pa.int64()).view(pa.timestamp("us"))
    simple = (
        types.is_boolean, types.is_signed_integer, types.is_floating, types.is_decimal,
        types.is_string, types.is_binary, types.is_date32,
    )  # fmt: skip
    return values if any(test(kind) for test in simple) else None


def random_condition(draw: random.Random, leaves: list[Leaf], depth: int = 2) -> Condition:
    """A condition over some of the leaves."""
    if depth and draw.random() < 0.4:
        parts = [random_condition(draw, leaves, depth - 1) for _ in range(draw.randint(2, 3))]
        word = draw.choice((" AND ", " OR "))
        return Condition(*(f"({word.join(texts)})" for texts in zip(*parts, strict=True)))
    if depth and draw.random() < 0.15:
        inner = random_condition(draw, leaves, depth - 1)
        return Condition(f"(NOT {inner.spark})", f"(NOT {inner.duck})")
    return _comparison(draw, draw.choice(leaves), leaves)


def _comparison(draw: random.Random, leaf: Leaf, leaves: list[Leaf]) -> Condition:
    how = draw.random()
    if how < 0.1:
        test = draw.choice(("IS NULL", "IS NOT NULL"))
        return Condition(f"({leaf.spark} {test})", f"({leaf.name} {test})")
    if how < 0.2:
        return _membership(draw, leaf)
    if how < 0.3:
        low, high = _constant(draw, leaf), _constant(draw, leaf)
        return Condition(
            f"({leaf.spark} BETWEEN {low.spark} AND {high.spark})",
            f"({leaf.name} BETWEEN {low.duck} AND {high.duck})",
        )
    if how < 0.38 and pa.types.is_string(leaf.values.type):
        return _prefix(draw, leaf)
    if how < 0.44 and pa.types.is_signed_integer(leaf.values.type):
        number = draw.randint(0, 4)
        return Condition(f"(({leaf.spark} % 5) = {number})", f"(({leaf.name} % 5) = {number})")
    same = [other for other in leaves if other.values.type == leaf.values.type]
    if how < 0.5:
        other = draw.choice(same)
        return Condition(f"({leaf.spark} <= {other.spark})", f"({leaf.name} <= {other.name})")
    constant = _constant(draw, leaf)
    operator = draw.choice(("=", "=", "=", "<", "<=", ">", ">=", "<>", "<=>"))
    duck = "IS NOT DISTINCT FROM" if operator == "<=>" else operator
    if draw.random() < 0.2 and operator != "<=>":
        flipped = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(operator, operator)
        return Condition(
            f"({constant.spark} {flipped} {leaf.spark})",
            f"({leaf.name} {duck} {constant.duck})",
        )
    return Condition(
        f"({leaf.spark} {operator} {constant.spark})", f"({leaf.name} {duck} {constant.duck})"
    )


def _membership(draw: random.Random, leaf: Leaf) -> Condition:
    constants = [_constant(draw, leaf) for _ in range(draw.randint(1, 4))]
    word = draw.choice(("IN", "IN", "NOT IN"))
    return Condition(
        f"({leaf.spark} {word} ({', '.join(c.spark for c in constants)}))",
        f"({leaf.name} {word} ({', '.join(c.duck for c in constants)}))",
    )


def _prefix(draw: random.Random, leaf: Leaf) -> Condition:
    value = _value(draw, leaf)
    text = value[: draw.randint(0, 4)] if isinstance(value, str) else "a"
    constant = _text(text)
    if any(sign in text for sign in "%_\\\0") or draw.random() < 0.5:
        return Condition(
            f"startswith({leaf.spark}, {constant.spark})",
            f"starts_with({leaf.name}, {constant.duck})",
        )
    pattern = _text(f"{text}%")
    return Condition(f"({leaf.spark} LIKE {pattern.spark})", f"({leaf.name} LIKE {pattern.duck})")


def _value(draw: random.Random, leaf: Leaf) -> Any:
    if not len(leaf.values):
        return None
    return _python(leaf.values, draw.randrange(len(leaf.values)))


def _python(values: pa.Array, index: int) -> Any:
    if pa.types.is_timestamp(values.type):
        micros = values.slice(index, 1).view(pa.int64())[0].as_py()
        if micros is None or abs(micros) > _CALENDAR_MICROS or micros < -62_000_000_000_000_000:
            return None
        return _MOMENT + dt.timedelta(microseconds=micros)
    if pa.types.is_date(values.type):
        days = values.slice(index, 1).view(pa.int32())[0].as_py()
        in_range = days is not None and -719_000 < days < 2_900_000
        return dt.date(1970, 1, 1) + dt.timedelta(days) if in_range else None
    return values[index].as_py()


def _constant(draw: random.Random, leaf: Leaf) -> Constant:
    kind, value = leaf.values.type, _value(draw, leaf)
    types = pa.types
    duck = _duck_type(kind)
    if draw.random() < 0.03:
        return Constant("NULL", f"CAST(NULL AS {duck})")
    if types.is_boolean(kind):
        word = draw.choice(("true", "false"))
        return Constant(word, word)
    if types.is_signed_integer(kind):
        return _integer(draw, value, kind.bit_width)
    if types.is_floating(kind):
        return _float(draw, value, duck)
    if types.is_decimal(kind):
        return _decimal(draw, value, kind)
    if types.is_string(kind):
        if value is None or "\0" in value or draw.random() < 0.1:
            value = draw.choice(("", "a", "zz", "é€", "text 1"))
        return _text(value + draw.choice(("", "", "", "0")))
    if types.is_binary(kind):
        data = (value or b"") + draw.choice((b"", b"", b"\0"))
        return Constant(f"X'{data.hex()}'", f"from_hex('{data.hex()}')")
    if types.is_date(kind):
        day = (value or dt.date(2020, 2, 29)) + dt.timedelta(draw.choice((0, 0, 1, -1)))
        return Constant(f"DATE '{day.isoformat()}'", f"DATE '{day.isoformat()}'")
    moment = value or dt.datetime(2020, 2, 29, 1)
    text = (moment + dt.timedelta(microseconds=draw.choice((0, 0, 1, -1)))).isoformat(" ")
    spark = draw.choice((f"TIMESTAMP '{text}Z'", f"TIMESTAMP_NTZ '{text}'"))
    return Constant(spark, f"TIMESTAMP '{text}'")


def _duck_type(kind: pa.DataType) -> str:
    types = pa.types
    if types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    names: dict[Callable[[pa.DataType], bool], str] = {
        types.is_boolean: "BOOLEAN", types.is_signed_integer: "BIGINT", types.is_float32: "FLOAT",
        types.is_float64: "DOUBLE", types.is_string: "VARCHAR", types.is_binary: "BLOB",
        types.is_date: "DATE",
    }  # fmt: skip
    return next((name for test, name in names.items() if test(kind)), "TIMESTAMP")


def _integer(draw: random.Random, value: int | None, bits: int) -> Constant:
    number = (value or 0) + draw.choice((0, 0, 0, 1, -1))
    if draw.random() < 0.05:
        number = draw.choice((2 ** (bits - 1) - 1, 1 - 2 ** (bits - 1), 0))
    number = max(1 - 2**63, min(2**63 - 1, number))
    if draw.random() < 0.1:
        return Constant(f"{number}.5BD", f"CAST('{number}.5' AS DECIMAL(38,1))")
    return Constant(str(number), f"CAST({number} AS BIGINT)")


def _float(draw: random.Random, value: float | None, duck: str) -> Constant:
    number = 0.0 if value is None else value
    if draw.random() < 0.2:
        number = draw.choice((math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5))
    if math.isfinite(number) and draw.random() < 0.3:
        number += draw.choice((1.0, -1.0))
    text = "NaN" if math.isnan(number) else repr(number).replace("inf", "Infinity")
    return Constant(f"CAST('{text}' AS {duck})", f"CAST('{number!r}' AS {duck})")


def _decimal(draw: random.Random, value: Decimal | None, kind: Any) -> Constant:
    number = Decimal(0) if value is None else value
    if draw.random() < 0.3 and kind.precision < 38:
        number += draw.choice((1, -1)) * Decimal(1).scaleb(-kind.scale)
    digits = number.as_tuple()
    scale = max(0, -int(digits.exponent))
    precision = max(len(digits.digits), scale)
    if precision > 38:
        number, scale, precision = Decimal(0), 0, 1
    return Constant(f"{number:f}BD", f"CAST('{number:f}' AS DECIMAL({precision},{scale}))")


def _text(text: str) -> Constant:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    plain = text.replace("'", "''")
    return Constant(f"'{escaped}'", f"'{plain}'")


def same_rows(found: pa.Table, expected: pa.Table) -> bool:
    """Whether two tables are equal, NaN equal to itself and zeros of different signs not."""
    return found.schema.equals(expected.schema) and all(
        _exact(left.combine_chunks()).equals(_exact(right.combine_chunks()))
        for left, right in zip(found.columns, expected.columns, strict=True)
    )


def _exact(values: Any) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.nulls(0, values.type)
    if pa.types.is_float64(values.type):
        return values.view(pa.int64())
    if pa.types.is_float32(values.type):
        return values.view(pa.int32())
    if pa.types.is_nested(values.type):
        return pa.array([repr(value) for value in values.to_pylist()], pa.string())
    return values


def compare(table: DeltaTable, count: int, draw: random.Random) -> Iterator[str | None]:
    """For each of so many random filters None, or what differs."""
    reader = SecondReader(table)
    names = reader.rows.column_names
    try:
        for _ in range(count if reader.leaves else 0):
            leaves = draw.sample(reader.leaves, min(len(reader.leaves), draw.randint(1, 3)))
            condition = random_condition(draw, leaves)
            columns = draw.sample(names, min(len(names), draw.randint(1, 5)))
            yield _difference(reader, condition, columns)
    finally:
        reader.close()


def _difference(reader: SecondReader, condition: Condition, columns: list[str]) -> str | None:
    expected = reader.expect(condition, columns)
    try:
        found = reader.snapshot.scan(columns, condition.spark).to_arrow()
    except DeltaError as error:
        return f"{condition.spark}: {type(error).__name__}: {error}"
    if same_rows(found, expected):
        return None
    return f"{condition.spark} {columns}: {found.num_rows} rows instead of {expected.num_rows}"


def foreign_table(path: Path, draw: random.Random) -> DeltaTable:
    """A table over files of another writer, in a random layout."""
    path.mkdir()
    is_legacy = draw.random() < 0.4
    for number in range(draw.randint(1, 3)):
        rows = random_rows(draw, draw.choice((50, 3_000, 20_000)), number)
        # INT96 is a time in UTC.
        rows = rows.drop_columns("ntz") if is_legacy else rows
        pq.write_table(
            rows,
            path / f"part-{number}.parquet",
            row_group_size=draw.choice((100, 5_000, 20_000, 100_000)),
            data_page_size=draw.choice((512, 8_192, 1_048_576)),
            write_batch_size=draw.choice((64, 1024)),
            compression=draw.choice(("snappy", "zstd", "none")),
            use_dictionary=draw.random() < 0.6,
            data_page_version=draw.choice(("1.0", "2.0")),
            write_page_index=draw.random() < 0.8,
            use_deprecated_int96_timestamps=is_legacy and draw.random() < 0.7,
        )
    return DeltaTable.convert(str(path))


def indexed_table(path: Path, draw: random.Random) -> DeltaTable:
    """A table over a file of another writer, of few large row groups with many small pages, some
    of whose rows are deleted by a vector.
    """
    path.mkdir()
    pq.write_table(
        random_rows(draw, 20_000, 0),
        path / "part-0.parquet",
        row_group_size=draw.choice((6_000, 20_000)),
        data_page_size=draw.choice((512, 2_048)),
        write_batch_size=64,
        use_dictionary=draw.random() < 0.6,
        write_page_index=True,
    )
    table = DeltaTable.convert(str(path), properties={"delta.enableDeletionVectors": "true"})
    table.delete(draw.choice(("id % 7 = 3", "id BETWEEN 4000 AND 6000", "id = 12345")))
    return table


def own_table(path: Path, draw: random.Random) -> DeltaTable:
    """A table of this library, with partitions, deletion vectors, defaults and wider types."""
    properties = {"delta.enableDeletionVectors": "true", "delta.enableTypeWidening": "true"}
    if draw.random() < 0.5:
        properties["delta.columnMapping.mode"] = "name"
    rows = random_rows(draw, draw.choice((500, 20_000)), 0)
    by = draw.choice(([], [], ["few"], ["day"], ["flag"], ["part"]))
    table = DeltaTable.create(path, rows.schema, partition_by=by, properties=properties)
    table.append(rows)
    if "part" not in by:
        table.widen_column("part", "BIGINT")
    table.widen_column("small", draw.choice(("INT", "BIGINT", "DOUBLE", "DECIMAL(12,2)")))
    table.widen_column("f", "DOUBLE")
    table.widen_column("amount", "DECIMAL(16,4)")
    table.delete(draw.choice(("id % 7 = 3", "id < 900", "id % 100 > 2")))
    more = random_rows(draw, draw.choice((10, 5_000)), 1)
    table.append(more.cast(pa.schema([*table.snapshot().arrow_schema])))
    return table


def random_rows(draw: random.Random, count: int, part: int) -> pa.Table:
    """Rows of many types, with nulls, some of whose columns are sorted."""
    numbers = range(count)
    floats = (math.nan, -0.0, 0.0, math.inf, -math.inf, 1.5)

    def optional(values: list[Any], kind: pa.DataType, often: float = 0.1) -> pa.Array:
        return pa.array([None if draw.random() < often else value for value in values], kind)

    moments = [_MOMENT + dt.timedelta(days=18_000, seconds=number * 977) for number in numbers]
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "part": pa.array([part] * count, pa.int32()),
            "small": optional([draw.randint(-128, 127) for _ in numbers], pa.int8()),
            "few": optional([f"text {number // 500}" for number in numbers], pa.string()),
            "text": optional([str(draw.randint(0, 10**6)) for _ in numbers], pa.string()),
            "f": optional([draw.choice(floats) for _ in numbers], pa.float32()),
            "d": optional([number / 4 for number in numbers], pa.float64()),
            "nan": pa.array([draw.choice(floats) for _ in numbers], pa.float64()),
            "amount": optional([Decimal(number).scaleb(-2) for number in numbers],
                               pa.decimal128(12, 2)),
            "wide": optional([Decimal(number * 10**20) for number in numbers],
                             pa.decimal128(38, 0)),
            "flag": optional([number % 3 == 0 for number in numbers], pa.bool_(), 0.2),
            "day": optional([dt.date(2020, 1, 1) + dt.timedelta(number // 999)
                             for number in numbers], pa.date32()),
            "at": pa.array(moments, pa.timestamp("us", "UTC")),
            "ntz": pa.array(moments, pa.timestamp("us")),
            "raw": optional([number.to_bytes(3, "big") for number in numbers], pa.binary()),
            "none": pa.nulls(count, pa.int32()),
            "list": pa.array([[*range(number % 4)] for number in numbers]),
            "st": pa.array([None if number % 11 == 0 else {"x": number, "y": str(number % 9),
                            "in": {"z": number / 2}} for number in numbers]),
        }
    )  # fmt: skip


def readable_tables() -> Iterator[DeltaTable]:
    """The golden tables of up to `MAX_ROWS` rows that can be read."""
    for path in sorted(GOLDEN_TABLES.glob("*/table")):
        try:
            table = DeltaTable(str(path))
            if (table.snapshot().num_records or 0) <= MAX_ROWS:
                table.snapshot().scan().to_arrow()
                yield table
        except (DeltaError, OSError):
            continue


def main(count: int = 10_000, seed: int = 7) -> None:
    """Compare half of the filters on random tables and half on golden ones."""
    draw = random.Random(seed)
    done = different = 0
    golden = [*readable_tables()]
    with tempfile.TemporaryDirectory() as directory:
        while done < count:
            make = draw.choice((foreign_table, own_table))
            table = make(Path(directory) / str(done), draw)
            chosen = [
                (table, 100),
                *((draw.choice(golden), 10) for _ in range(10 if golden else 0)),
            ]
            for other, filters in chosen:
                for found in compare(other, filters, draw):
                    done += 1
                    if found is not None:
                        different += 1
                        sys.stdout.write(f"{other.store.location.uri} {found}\n")
    sys.stdout.write(f"{done} filters, {different} with other rows\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
