"""Partition keys become exactly the boxes they name, and those the predicate that selects them."""

from __future__ import annotations

from datetime import UTC, date, datetime
from itertools import product

import dagster as dg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_delta.errors import InvalidArgument, SchemaMismatch
from dagster_delta.orchestration.partitions.partitions import PartitionSelection, select_partitions
from dagster_delta.orchestration.partitions.predicates import identity_values, partition_slice
from dagster_delta.protocol.features.text_limits import TEXT_LIMIT_KEY
from dagster_delta.protocol.schema import DecimalType, PrimitiveType, StructField, StructType
from dagster_delta.sql.expressions import parse_expression
from dagster_delta.sql.typed import Column
from dagster_delta.table.slices import Slice, resolve_column

COLORS = dg.StaticPartitionsDefinition(["red", "green", "blue"])
DAYS = dg.DailyPartitionsDefinition("2013-01-01", end_date="2013-03-01")
MONTHS = dg.MonthlyPartitionsDefinition("2013-01-01", end_date="2014-01-01")
HOURS = dg.HourlyPartitionsDefinition("2013-01-01-00:00")
NEW_YORK_HOURS = dg.HourlyPartitionsDefinition("2023-11-04-00:00", timezone="America/New_York")


def schema_of(**columns: str) -> StructType:
    types = {"decimal": DecimalType(10, 2)}
    return StructType(
        tuple(
            StructField(name, types.get(text) or PrimitiveType(text))
            for name, text in columns.items()
        )
    )


def slice_of(selection: PartitionSelection) -> Slice:
    return partition_slice(lambda _: selection, selection.keys, asset="a")


def predicate(definition, keys, column_type, partition_expr="c") -> str:
    selection = select_partitions(definition, keys, partition_expr, asset="a")
    schema = schema_of(c=column_type)
    condition = slice_of(selection).condition(schema)
    # The nodes are those that the parser makes of the text.
    assert parse_expression(condition.sql, schema).typed == condition.typed
    assert condition.sql == slice_of(selection).sql(schema)
    return condition.sql


def test_static_keys_that_are_not_neighbours_select_nothing_between_them():
    assert predicate(COLORS, ["red", "blue"], "string") == "`c` IN ('blue', 'red')"


def test_order_and_repeats_of_keys_do_not_matter():
    assert predicate(COLORS, ["red", "blue", "red"], "string") == predicate(
        COLORS, ["blue", "red"], "string"
    )


def test_one_key_is_an_equality():
    assert predicate(COLORS, ["red"], "string") == "`c` = 'red'"


def test_no_keys_select_no_rows():
    assert predicate(COLORS, [], "string") == "1 = 0"


@pytest.mark.parametrize(
    ("column_type", "keys", "expected"),
    [
        ("integer", ["10", "9"], "`c` IN (10, 9)"),
        ("long", ["-7"], "`c` = -7"),
        ("date", ["2013-01-31"], "`c` = DATE '2013-01-31'"),
        ("boolean", ["true"], "`c` = true"),
        ("decimal", ["1.50"], "`c` = 1.50BD"),
        ("timestamp", ["2013-01-31T10:00:00+02:00"], "`c` = TIMESTAMP '2013-01-31 08:00:00Z'"),
        ("timestamp_ntz", ["2013-01-31 10:00"], "`c` = TIMESTAMP_NTZ '2013-01-31 10:00:00'"),
    ],
)
def test_static_keys_take_the_type_of_the_column(column_type, keys, expected):
    assert predicate(dg.StaticPartitionsDefinition(keys), keys, column_type) == expected


@pytest.mark.parametrize(
    "column_type",
    ["integer", "date", "timestamp", "timestamp_ntz", "boolean", "decimal", "double", "binary"],
)
def test_a_static_key_that_is_no_value_of_the_column_is_refused_by_name(column_type):
    with pytest.raises(InvalidArgument, match=r"'red'.*column") as caught:
        predicate(COLORS, ["red"], column_type)
    assert caught.value.column == "c"


def test_quotes_and_backslashes_in_a_key_stay_inside_the_literal():
    keys = ["it's \\ here"]
    assert predicate(dg.StaticPartitionsDefinition(keys), keys, "string") == (
        "`c` = 'it\\'s \\\\ here'"
    )


def test_an_hour_of_a_timestamp_is_half_open_in_utc():
    assert predicate(HOURS, ["2013-01-01-23:00"], "timestamp") == (
        "`c` >= TIMESTAMP '2013-01-01 23:00:00Z' AND `c` < TIMESTAMP '2013-01-02 00:00:00Z'"
    )


def test_a_range_of_hours_in_a_naive_timestamp_covers_every_hour():
    keys = [f"2013-01-01-{hour:02}:00" for hour in (5, 3, 4)]
    assert predicate(HOURS, keys, "timestamp_ntz") == (
        "`c` >= TIMESTAMP_NTZ '2013-01-01 03:00:00' AND `c` < TIMESTAMP_NTZ '2013-01-01 06:00:00'"
    )


def test_windows_with_a_gap_are_not_bridged():
    sql = predicate(DAYS, ["2013-01-01", "2013-01-03"], "timestamp")
    assert sql == (
        "(`c` >= TIMESTAMP '2013-01-01 00:00:00Z' AND `c` < TIMESTAMP '2013-01-02 00:00:00Z') OR "
        "(`c` >= TIMESTAMP '2013-01-03 00:00:00Z' AND `c` < TIMESTAMP '2013-01-04 00:00:00Z')"
    )


def test_a_range_of_days_in_a_string_column_names_every_day():
    sql = predicate(DAYS, ["2013-01-02", "2013-01-01", "2013-01-03"], "string")
    assert sql == "`c` IN ('2013-01-01', '2013-01-02', '2013-01-03')"


def test_a_string_column_holds_the_key_in_the_format_of_the_definition():
    definition = dg.MonthlyPartitionsDefinition("2013/01", fmt="%Y/%m")
    assert predicate(definition, ["2013/04"], "string") == "`c` = '2013/04'"


def test_a_month_in_a_date_column_is_a_range_of_days():
    assert predicate(MONTHS, ["2013-02-01"], "date") == (
        "`c` >= DATE '2013-02-01' AND `c` < DATE '2013-03-01'"
    )


def test_a_day_in_a_date_column_is_an_equality():
    assert predicate(DAYS, ["2013-02-01"], "date") == "`c` = DATE '2013-02-01'"


def test_days_that_begin_at_six_stand_for_the_date_they_begin_on():
    definition = dg.DailyPartitionsDefinition("2013-01-01", hour_offset=6)
    assert predicate(definition, ["2013-01-05"], "date") == "`c` = DATE '2013-01-05'"


def test_an_hour_in_a_date_column_is_refused():
    with pytest.raises(InvalidArgument, match="part of a day"):
        predicate(HOURS, ["2013-01-01-03:00"], "date")


def test_the_hours_of_a_whole_day_are_a_date():
    keys = [f"2013-01-01-{hour:02}:00" for hour in range(24)]
    assert predicate(HOURS, keys, "date") == "`c` = DATE '2013-01-01'"


@pytest.mark.parametrize(
    ("definition", "key", "number"),
    [
        (dg.DailyPartitionsDefinition("2013-01-01"), "2013-01-31", 20130131),
        (dg.MonthlyPartitionsDefinition("201301", fmt="%Y%m"), "201304", 201304),
        (
            dg.TimeWindowPartitionsDefinition(start="2013", fmt="%Y", cron_schedule="0 0 1 1 *"),
            "2014",
            2014,
        ),
    ],
)
def test_an_integer_column_holds_the_digits_of_the_key(definition, key, number):
    assert predicate(definition, [key], "integer") == f"`c` = {number}"


def test_a_month_by_name_never_stands_for_a_year_in_an_integer_column():
    definition = dg.MonthlyPartitionsDefinition("Jan 2013", fmt="%b %Y")
    with pytest.raises(InvalidArgument, match="Feb 2013"):
        predicate(definition, ["Feb 2013"], "integer")


def test_a_float_column_cannot_hold_time():
    with pytest.raises(InvalidArgument, match="double"):
        predicate(DAYS, ["2013-01-01"], "double")


def test_a_timestamp_is_compared_as_an_instant_of_the_definitions_zone():
    definition = dg.DailyPartitionsDefinition("2013-01-01", timezone="America/New_York")
    assert predicate(definition, ["2013-07-01"], "timestamp") == (
        "`c` >= TIMESTAMP '2013-07-01 04:00:00Z' AND `c` < TIMESTAMP '2013-07-02 04:00:00Z'"
    )


def test_a_naive_timestamp_is_the_wall_clock_of_the_definitions_zone():
    definition = dg.DailyPartitionsDefinition("2013-01-01", timezone="America/New_York")
    assert predicate(definition, ["2013-07-01"], "timestamp_ntz") == (
        "`c` >= TIMESTAMP_NTZ '2013-07-01 00:00:00' AND `c` < TIMESTAMP_NTZ '2013-07-02 00:00:00'"
    )


def test_a_repeated_hour_is_two_instants_in_a_timestamp():
    first, second = (
        predicate(NEW_YORK_HOURS, [key], "timestamp")
        for key in ("2023-11-05-01:00", "2023-11-05-01:00-0500")
    )
    assert "05:00:00Z' AND `c` < TIMESTAMP '2023-11-05 06:00:00Z'" in first
    assert "06:00:00Z' AND `c` < TIMESTAMP '2023-11-05 07:00:00Z'" in second


@pytest.mark.parametrize("key", ["2023-11-05-01:00", "2023-11-05-01:00-0500"])
def test_a_repeated_hour_is_refused_in_a_naive_timestamp(key):
    with pytest.raises(InvalidArgument, match="clock goes back"):
        predicate(NEW_YORK_HOURS, [key], "timestamp_ntz")


QUARTERS = dg.TimeWindowPartitionsDefinition(
    start="2024-10-26-00:00",
    fmt="%Y-%m-%d-%H:%M",
    cron_schedule="*/15 * * * *",
    timezone="Europe/Berlin",
)


@pytest.mark.parametrize("key", ["2024-10-27-02:00", "2024-10-27-02:15", "2024-10-27-02:45"])
def test_a_part_of_a_repeated_hour_is_refused_in_a_naive_timestamp(key):
    with pytest.raises(InvalidArgument, match="clock goes back"):
        predicate(QUARTERS, [key], "timestamp_ntz")


@pytest.mark.parametrize("key", ["2024-10-27-01:45", "2024-10-27-03:00", "2024-10-26-02:15"])
def test_a_part_of_another_hour_is_taken_in_a_naive_timestamp(key):
    assert key.rpartition("-")[2] in predicate(QUARTERS, [key], "timestamp_ntz")


def test_both_halves_of_a_repeated_hour_together_are_one_naive_hour():
    sql = predicate(NEW_YORK_HOURS, ["2023-11-05-01:00-0500", "2023-11-05-01:00"], "timestamp_ntz")
    assert sql == (
        "`c` >= TIMESTAMP_NTZ '2023-11-05 01:00:00' AND `c` < TIMESTAMP_NTZ '2023-11-05 02:00:00'"
    )


# ---- multi-partitions


def grid(**expr: str):
    definition = dg.MultiPartitionsDefinition({"color": COLORS, "day": DAYS})
    return definition, expr or {"color": "c", "day": "d"}


def multi_predicate(keys: list[tuple[str, str]]) -> str:
    definition, expr = grid()
    selection = select_partitions(
        definition, [f"{color}|{day}" for color, day in keys], expr, asset="a"
    )
    return slice_of(selection).sql(schema_of(c="string", d="date"))


def test_a_rectangle_of_partitions_is_one_product():
    keys = list(product(["red", "blue"], ["2013-01-01", "2013-01-02"]))
    assert multi_predicate(keys) == (
        "`c` IN ('blue', 'red') AND `d` >= DATE '2013-01-01' AND `d` < DATE '2013-01-03'"
    )


def test_a_ragged_set_never_grows_into_its_bounding_rectangle():
    assert multi_predicate([("red", "2013-01-01"), ("blue", "2013-01-02")]) == (
        "(`c` = 'blue' AND `d` = DATE '2013-01-02') OR (`c` = 'red' AND `d` = DATE '2013-01-01')"
    )


def test_a_dimension_with_gaps_is_parenthesised_inside_its_product():
    keys = [("red", "2013-01-01"), ("red", "2013-01-03")]
    assert multi_predicate(keys) == (
        "`c` = 'red' AND ((`d` = DATE '2013-01-01') OR (`d` = DATE '2013-01-03'))"
    )


cells = st.sets(
    st.tuples(st.sampled_from(["red", "green", "blue"]), st.integers(1, 5)), max_size=15
)


@given(cells)
def test_the_boxes_of_any_set_cover_it_exactly_once(chosen):
    definition, expr = grid()
    keys = [f"{color}|2013-01-{day:02}" for color, day in chosen]
    selection = select_partitions(definition, keys, expr, asset="a")
    covered = [
        (color, int(day[-2:])) for box in selection.boxes for color, day in product(*_keys(box))
    ]
    assert sorted(covered) == sorted(chosen)


def _keys(box):
    return [each.keys for each in box]


@given(st.sets(st.integers(0, 23 * 3), max_size=20))
def test_joined_hours_cover_exactly_their_instants(hours):
    keys = [f"2013-01-{1 + hour // 24:02}-{hour % 24:02}:00" for hour in hours]
    sql = predicate(HOURS, keys, "timestamp_ntz")
    ranges = [] if sql == "1 = 0" else _parse_ranges(sql)
    covered = {
        hour
        for hour in range(24 * 3)
        if any(low <= datetime(2013, 1, 1 + hour // 24, hour % 24) < high for low, high in ranges)
    }
    assert covered == hours


def _parse_ranges(sql: str):
    stamps = [datetime.fromisoformat(each) for each in sql.split("'")[1::2]]
    return list(zip(stamps[::2], stamps[1::2], strict=True))


# ---- partition_expr


def test_a_partitioned_asset_without_partition_expr_is_told_which_key_to_set():
    with pytest.raises(InvalidArgument, match="set it to the name of the column"):
        select_partitions(COLORS, ["red"], None, asset="flights")


def test_a_missing_dimension_is_an_error():
    definition, _ = grid()
    with pytest.raises(InvalidArgument, match="map each of the dimensions"):
        select_partitions(definition, ["red|2013-01-01"], {"color": "c"}, asset="a")


def test_an_unknown_dimension_is_an_error():
    definition, _ = grid()
    expr = {"color": "c", "day": "d", "dya": "d"}
    with pytest.raises(InvalidArgument, match=r"dya.*map each of the dimensions"):
        select_partitions(definition, ["red|2013-01-01"], expr, asset="a")


def test_one_column_for_two_dimensions_is_an_error():
    definition, _ = grid()
    with pytest.raises(InvalidArgument, match="map each of the dimensions"):
        select_partitions(definition, ["red|2013-01-01"], "c", asset="a")


def test_a_partition_expr_that_names_no_column_lists_the_columns():
    with pytest.raises(SchemaMismatch, match="one of c"):
        predicate(COLORS, ["red"], "string", partition_expr="colour")


def test_a_key_that_no_literal_can_hold_is_refused_by_name():
    with pytest.raises(InvalidArgument, match="partition key"):
        predicate(dg.StaticPartitionsDefinition(["1" * 39]), ["1" * 39], "decimal")


def test_a_padded_column_is_compared_as_spark_pads_it():
    metadata = {TEXT_LIMIT_KEY: "char(5)"}
    schema = StructType((StructField("c", PrimitiveType("string"), metadata=metadata),))
    condition = slice_of(select_partitions(COLORS, ["red"], "c", asset="a")).condition(schema)
    assert condition.typed == parse_expression("c = 'red  '", schema).typed


def test_a_partition_expr_may_be_quoted_nested_and_in_another_case():
    nested = StructType(
        (
            StructField("a.b", PrimitiveType("string")),
            StructField("s", StructType((StructField("Day", PrimitiveType("date")),))),
        )
    )
    assert resolve_column("`a.b`", nested) == Column(("a.b",), PrimitiveType("string"))
    assert resolve_column("S.day", nested) == Column(("s", "Day"), PrimitiveType("date"))


# ---- identity values


def only_slice(selection: PartitionSelection):
    ((each,),) = selection.boxes
    return each


@pytest.mark.parametrize(
    ("definition", "keys", "column_type", "expected"),
    [
        (COLORS, ["red"], "string", ("red",)),
        (DAYS, ["2013-01-02"], "date", (date(2013, 1, 2),)),
        (DAYS, ["2013-01-02"], "string", ("2013-01-02",)),
        (DAYS, ["2013-01-02"], "integer", (20130102,)),
        (MONTHS, ["2013-01-01"], "date", None),
        (DAYS, ["2013-01-02"], "timestamp", None),
        (
            dg.StaticPartitionsDefinition(["2013-01-01"]),
            ["2013-01-01"],
            "timestamp",
            (datetime(2013, 1, 1, tzinfo=UTC),),
        ),
    ],
)
def test_only_a_key_that_is_one_value_is_an_identity(definition, keys, column_type, expected):
    selection = select_partitions(definition, keys, "c", asset="a")
    assert identity_values(only_slice(selection), schema_of(c=column_type)) == expected
