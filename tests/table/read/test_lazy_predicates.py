"""Any predicate of polars gives the rows that polars chooses, whichever files it skips."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from dagster_delta import DeltaTable
from dagster_delta.engines.polars import to_condition
from dagster_delta.protocol.schema import DecimalType, PrimitiveType, StructField, StructType
from dagster_delta.sql.conditions import to_sql
from dagster_delta.sql.expressions import parse_expression

pytestmark = pytest.mark.slow

NAN, INFINITE = float("nan"), float("inf")
VALUES: dict[str, tuple[Any, list[Any]]] = {
    "byte": (pl.Int8, [-128, 0, 1, 127]),
    "integer": (pl.Int32, [-(2**31), 0, 7, 2**31 - 1]),
    "long": (pl.Int64, [-(2**63), 2**53 + 1, 42, 2**63 - 1]),
    "float": (pl.Float32, [0.1, -0.0, NAN, -INFINITE]),
    "double": (pl.Float64, [1e-7, 0.0, NAN, 1e22]),
    "text": (pl.String, ["", "it's", "a\\n", "ä\n"]),
    "bytes": (pl.Binary, [b"", b"a", b"'", b"\x00\xff"]),
    "flag": (pl.Boolean, [True, False, True, False]),
    "day": (pl.Date, [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(2020, 2, 29), dt.date.max]),
    "moment": (
        pl.Datetime("us", "UTC"),
        [dt.datetime(year, 12, 31, 23, 59, 59, 999_999, dt.UTC) for year in (1, 1969, 2020, 9999)],
    ),
    "wall": (
        pl.Datetime("us"),
        [dt.datetime(year, 1, 1, 0, 0, 0, 1) for year in (1, 1970, 2020, 9999)],
    ),
    "price": (pl.Decimal(10, 2), [Decimal("1.50"), Decimal(0), Decimal("1.01"), Decimal("1.00")]),
    "whole": (pl.Decimal(38, 0), [Decimal(1), Decimal(10) ** 37, Decimal(2), Decimal(0)]),
    "part": (pl.String, ["x", "y", "it's", "x"]),
}
OTHER_NUMBERS = [0, 200, -(2**40), 1.5, Decimal("1.005"), Decimal("1.5")]
NUMBERS = ("byte", "integer", "long", "float", "double", "price", "whole")
OPERATORS = ("eq", "ne", "lt", "le", "gt", "ge", "eq_missing", "ne_missing")

names = st.sampled_from(list(VALUES))


def _constants(name: str) -> st.SearchStrategy[pl.Expr]:
    dtype, values = VALUES[name]
    own = st.sampled_from([*values, None]).map(lambda value: pl.lit(value, dtype))
    return own | st.sampled_from(OTHER_NUMBERS).map(pl.lit) if name in NUMBERS else own


@st.composite
def _leaves(draw: st.DrawFn, *, deep: bool) -> pl.Expr:
    name = draw(names)
    dtype, values = VALUES[name]
    column = pl.col("deep").struct.field(name) if deep and draw(st.booleans()) else pl.col(name)
    match draw(st.integers(0, 5)):
        case 0:
            return column.is_null() if draw(st.booleans()) else column.is_not_null()
        case 1:
            listed = pl.Series(draw(st.lists(st.sampled_from([*values, None]))), dtype=dtype)
            return column.is_in(listed.implode(), nulls_equal=draw(st.booleans()))
        case 2:
            closed: Any = draw(st.sampled_from(["both", "left", "right", "none"]))
            return column.is_between(draw(_constants(name)), draw(_constants(name)), closed)
        case 3 if dtype == pl.String:
            text = draw(st.sampled_from(values))
            return column.str.starts_with(text) | column.str.ends_with(text)
        case 3 if dtype == pl.Boolean:
            return column
    left, right = draw(st.permutations([column, draw(_constants(name))]))
    found: pl.Expr = getattr(left, draw(st.sampled_from(OPERATORS)))(right)
    return found


def _predicates(*, deep: bool) -> st.SearchStrategy[pl.Expr]:
    return st.recursive(
        _leaves(deep=deep),
        lambda inner: (
            st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1])
            | st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1])
            | inner.map(lambda each: ~each)
        ),
        max_leaves=4,
    )


PREDICATES = {deep: _predicates(deep=deep) for deep in (False, True)}


@pytest.fixture(scope="module", params=[False, True], ids=["by polars", "by Arrow"])
def tables(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A table of five files whose columns differ in the file where they are null; by Arrow, as it
    has a struct, whose fields are columns of the other too.
    """
    table = DeltaTable(str(tmp_path_factory.mktemp("table")), must_exist=False)
    for number in range(5):
        rows = pl.DataFrame(
            [
                pl.Series(name, [[*values, None][(number + index) % 5]], dtype)
                for index, (name, (dtype, values)) in enumerate(VALUES.items())
            ]
        )
        if request.param:
            rows = rows.with_columns(deep=pl.struct(rows.columns))
        table.append(rows, partition_by=["part"])
    scan = table.snapshot().scan()
    frame = pl.from_arrow(scan.to_arrow())
    assert scan.num_files == len(frame) == 5
    return scan, frame, request.param


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_predicate_chooses_the_rows_that_polars_chooses(tables: Any, data: st.DataObject) -> None:
    scan, frame, has_struct = tables
    predicate = data.draw(PREDICATES[has_struct])
    try:
        wanted = frame.filter(predicate)
    except pl.exceptions.PolarsError:
        # Not every number has a type in common with every decimal.
        return
    assert_frame_equal(scan.to_polars_lazy().filter(predicate).collect(), wanted)
    condition = to_condition(predicate, scan.schema)
    if condition is not None:
        # The nodes are those that the parser makes of the same Spark SQL.
        assert parse_expression(to_sql(condition), scan.schema).typed == condition


def test_a_comparison_that_only_spark_types_is_left_to_polars(tmp_path: Path) -> None:
    text = PrimitiveType("string")
    schema = StructType(
        (
            StructField("s", text, metadata={"__COLLATIONS": {"s": "ICU.UNICODE_CI"}}),
            StructField("e", DecimalType(38, 0)),
            StructField("z", StructType((StructField("x", text),))),
        )
    )
    table = DeltaTable.create(str(tmp_path), schema)
    values = {"s": ["a", "B"], "e": [Decimal(1), Decimal(2)], "z": [{"x": "y"}] * 2}
    table.append(pl.DataFrame(values, schema_overrides={"e": pl.Decimal(38, 0)}))
    rows = table.snapshot().scan().to_polars_lazy()
    assert rows.filter(pl.col("s") == "a").collect()["e"].to_list() == [1]
    assert rows.filter(pl.col("e") > pl.lit(Decimal("1.5"))).collect()["s"].to_list() == ["B"]
