"""Filters on a column take away partitions that are generated from it, and never a row."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_delta.engines.embedded_values import EMBEDDED_VALUES
from dagster_delta.evolution.column_definition import Column, schema_of_columns
from dagster_delta.evolution.table_definition import TableDefinition, define_table
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.statistics.statistics import parse_statistics_json
from dagster_delta.sql.expressions import parse_expression
from dagster_delta.sql.generated_filters import with_generated_filters
from dagster_delta.sql.skipping import skip_files

EXPRESSIONS = {
    "day": ("DATE", "CAST(ts AS DATE)"),
    "y": ("INT", "YEAR(ts)"),
    "m": ("INT", "MONTH(ts)"),
    "d": ("INT", "DAY(ts)"),
    "h": ("INT", "HOUR(ts)"),
    "month": ("DATE", "TRUNC(ts, 'MM')"),
    "hour": ("TIMESTAMP", "DATE_TRUNC('HOUR', ts)"),
    "year": ("TIMESTAMP", "DATE_TRUNC('YEAR', ts)"),
    "text": ("STRING", "DATE_FORMAT(ts, 'yyyy-MM')"),
    "times": ("STRING", "DATE_FORMAT(ts, 'yyyy-MM-dd-HH')"),
}
UTC = dt.UTC


def configuration(partition_by: Sequence[str], base: str = "TIMESTAMP") -> TableConfiguration:
    columns = [Column("ts", base), Column("s", "STRING")]
    columns += [
        Column(name, EXPRESSIONS[name][0], generated_as=EXPRESSIONS[name][1])
        for name in partition_by
        if name in EXPRESSIONS
    ]
    if "prefix" in partition_by:
        columns.append(Column("prefix", "STRING", generated_as="SUBSTRING(s, 1, 2)"))
    return define_table(
        TableDefinition(schema_of_columns(columns), partition_by),
        table_id="t",
        created_time_ms=0,
        values=EMBEDDED_VALUES,
    )


def partition_values(moment: dt.datetime, offset: dt.timedelta) -> dict[str, str]:
    """What a writer whose clock shows another time than UTC makes of a moment."""
    local = moment + offset
    hour = local.replace(minute=0, second=0, microsecond=0)
    year = hour.replace(month=1, day=1, hour=0)
    return {
        "day": f"{local:%Y-%m-%d}",
        "y": str(local.year),
        "m": str(local.month),
        "d": str(local.day),
        "h": str(local.hour),
        "month": f"{local:%Y-%m-01}",
        "hour": f"{hour - offset:%Y-%m-%d %H:%M:%S}",
        "year": f"{year - offset:%Y-%m-%d %H:%M:%S}",
        "text": f"{local:%Y-%m}",
        "times": f"{local:%Y-%m-%d-%H}",
    }


def may_match(table: TableConfiguration, where: str, files: Sequence[dict[str, str]]) -> list[bool]:
    condition = parse_expression(where, table.schema).typed
    names = table.partition_columns
    values = pa.array(
        [[(name, each.get(name)) for name in names] for each in files],
        pa.map_(pa.string(), pa.string()),
    )
    stats = pa.nulls(len(files), pa.string())
    skipped = skip_files(
        with_generated_filters(condition, table),
        table,
        values,
        lambda columns: parse_statistics_json(stats, columns),
    )
    found: list[bool] = skipped.may_match.to_pylist()
    return found


moments = st.datetimes(dt.datetime(1970, 1, 3), dt.datetime(2100, 1, 1), timezones=st.just(UTC))
nearby = st.timedeltas(dt.timedelta(days=-40), dt.timedelta(days=40))
offsets = st.integers(-18 * 60, 18 * 60).map(lambda minutes: dt.timedelta(minutes=minutes))
LAYOUTS = [[name] for name in EXPRESSIONS] + [["y", "m", "d", "h"], ["y", "m"], ["d", "y"]]


@pytest.mark.parametrize("layout", LAYOUTS, ids=".".join)
@settings(max_examples=6)
@given(
    bound=moments,
    rows=st.lists(st.tuples(nearby, offsets), min_size=20, max_size=40),
    flipped=st.booleans(),
)
def test_no_file_with_a_match_is_taken_away_whatever_the_time_zone_of_its_writer(
    layout: list[str],
    bound: dt.datetime,
    rows: list[tuple[dt.timedelta, dt.timedelta]],
    flipped: bool,
) -> None:
    table, literal = configuration(layout), f"TIMESTAMP '{bound:%Y-%m-%d %H:%M:%S.%f}Z'"
    times = [bound, *(bound + distance for distance, _ in rows)]
    files = [
        partition_values(each, offset)
        for each, (_, offset) in zip(times, [rows[0], *rows], strict=True)
    ]
    holds = {
        "=": [each == bound for each in times],
        "<": [each < bound for each in times],
        "<=": [each <= bound for each in times],
        ">": [each > bound for each in times],
        ">=": [each >= bound for each in times],
    }
    for operator, is_true in holds.items():
        where = f"{'NOT ' if flipped else ''}ts {operator} {literal}"
        found = may_match(table, where, files)
        assert all(kept or each == flipped for kept, each in zip(found, is_true, strict=True))


@pytest.mark.parametrize("layout", [each for each in LAYOUTS if each[0] not in "mdh"], ids=".".join)
@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("ts >= TIMESTAMP '2024-06-15 12:00:00Z'", [False, True, True]),
        ("ts < TIMESTAMP '2024-06-15 12:00:00Z'", [True, True, False]),
        ("ts = TIMESTAMP '2024-06-15 12:00:00Z'", [False, True, False]),
        ("ts IN (TIMESTAMP '2024-06-15 12:00:00Z', NULL)", [False, True, False]),
        ("ts IN (TIMESTAMP '2024-06-15 12:00:00Z')", [False, True, False]),
        ("NOT ts < TIMESTAMP '2024-06-15 12:00:00Z'", [True, True, True]),
        ("ts = TIMESTAMP '2024-06-15 12:00:00Z' OR s = 'x'", [True, True, True]),
    ],
)
def test_files_far_from_the_filter_are_taken_away(
    layout: list[str], where: str, kept: list[bool]
) -> None:
    days = [dt.datetime(year, 6, 15, 12, tzinfo=UTC) for year in (2022, 2024, 2026)]
    files = [partition_values(each, dt.timedelta(0)) for each in days]
    assert may_match(configuration(layout), where, files) == kept


def test_bounds_of_dates_are_exact() -> None:
    table = configuration(["y", "m"], base="DATE")
    files = [{"y": "2024", "m": str(month)} for month in range(1, 13)]
    kept = may_match(table, "ts >= DATE '2024-03-31' AND ts < DATE '2024-06-01'", files)
    assert [month for month, each in enumerate(kept, 1) if each] == [3, 4, 5, 6]
    assert may_match(table, "ts > DATE '2025-01-01'", files) == [False] * 12


def test_prefixes_bound_text() -> None:
    table = configuration(["prefix"])
    files: list[dict[str, str]] = [{"prefix": each} for each in ("aa", "ab", "b", "ca")] + [{}]
    for where, kept in {
        "s = 'abc'": ["ab"],
        "s >= 'abc'": ["ab", "b", "ca"],
        "s < 'b'": ["aa", "ab"],
        "s LIKE 'ab%'": ["ab"],
        "s LIKE 'abcd%'": ["ab"],
        "s LIKE 'a%'": ["aa", "ab"],
        "s IN ('ab', 'caa')": ["ab", "ca"],
    }.items():
        found = may_match(table, where, files)
        # Empty text is null as a partition value.
        assert found.pop() is True
        assert [file["prefix"] for file, each in zip(files, found, strict=False) if each] == kept


def test_years_of_five_digits_are_kept() -> None:
    table = configuration(["text"])
    far = [{"text": "+12024-01"}]
    assert may_match(table, "ts > TIMESTAMP '2024-06-15 12:00:00Z'", far) == [True]


def test_a_computed_operand_is_not_taken_apart() -> None:
    # Its rows are read, so that it may fail as without the generated column.
    table = configuration(["prefix"])
    condition = parse_expression("coalesce(1 / length(s) IN (1, NULL), true)", table.schema).typed
    assert with_generated_filters(condition, table) == condition
