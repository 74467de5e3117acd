"""Inputs and outputs that are a frame per partition key."""

from __future__ import annotations

from typing import Any

import dagster as dg
import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dagster_delta.errors import InvalidArgument, PartitionMismatch, SchemaMismatch
from tests.orchestration.conftest import Lake

DAYS = ["2024-01-01", "2024-01-02", "2024-01-03"]
ALL = (DAYS[0], DAYS[-1])
DAILY: dict[str, Any] = {
    "partitions_def": dg.DailyPartitionsDefinition(DAYS[0]),
    "backfill_policy": dg.BackfillPolicy.single_run(),
    "metadata": {"partition_expr": "day"},
}


def frame(day: str, *ids: int) -> pl.DataFrame:
    schema = {"id": pl.Int64, "day": pl.String}
    return pl.DataFrame({"id": list(ids), "day": [day] * len(ids)}, schema)


def returning(value: Any, annotation: Any = dict[str, pl.DataFrame], **options: Any) -> Any:
    def numbers():
        return value

    numbers.__annotations__ = {"return": annotation}
    return dg.asset(**{**DAILY, **options})(numbers)


FRAMES = {day: frame(day, number, number + 10) for number, day in enumerate(DAYS)}


def test_a_frame_per_partition_is_written_in_one_commit_and_read_again(lake: Lake) -> None:
    seen: dict[str, Any] = {}

    @dg.asset(**DAILY)
    def doubled(numbers: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
        seen.update(numbers)
        return {key: each.with_columns(id=pl.col("id") * 2) for key, each in numbers.items()}

    result = lake.materialize(returning(FRAMES), doubled, range_of=ALL)
    assert lake.table("numbers").snapshot().version == 0
    assert lake.table("doubled").snapshot().version == 0
    assert sorted(seen) == DAYS
    assert seen[DAYS[1]].sort("id").equals(FRAMES[DAYS[1]])
    assert lake.column("id", "doubled") == [0, 2, 4, 20, 22, 24]
    events = result.asset_materializations_for_node("doubled")
    assert {event.partition for event in events} == set(DAYS)
    facts: Any = events[0].metadata["delta/input/numbers"].value
    assert facts["rows"] == 6
    assert facts["loaded_as"] == "dict[str, polars.DataFrame]"


@pytest.mark.parametrize(
    ("annotation", "ids"),
    [
        (dict[str, pd.DataFrame], lambda frame: frame["id"].tolist()),
        (dict[str, pa.Table], lambda frame: frame["id"].to_pylist()),
        (dict[str, pl.LazyFrame], lambda frame: frame.collect()["id"].to_list()),
        (dict[str, duckdb.DuckDBPyRelation], lambda frame: [row[0] for row in frame.fetchall()]),
    ],
)
def test_frames_are_of_any_type(lake: Lake, annotation, ids) -> None:
    seen = {}

    def doubled(numbers):
        seen.update({key: sorted(ids(each)) for key, each in numbers.items()})
        return numbers

    doubled.__annotations__ = {"numbers": annotation, "return": annotation}
    lake.materialize(returning(FRAMES), dg.asset(**DAILY)(doubled), range_of=ALL)
    assert seen == {day: [number, number + 10] for number, day in enumerate(DAYS)}
    assert lake.column("id", "doubled") == [0, 1, 2, 10, 11, 12]


def test_an_unpartitioned_asset_reads_each_partition_of_its_upstream(lake: Lake) -> None:
    seen: dict[str, int] = {}

    @dg.asset(ins={"numbers": dg.AssetIn(metadata={"columns": ["id"], "where": "id > 0"})})
    def report(numbers: dict[str, pa.Table]) -> None:
        seen.update({key: each.num_rows for key, each in numbers.items()})
        assert {tuple(each.column_names) for each in numbers.values()} == {("id",)}

    days = dg.DailyPartitionsDefinition(DAYS[0], end_date="2024-01-04")
    numbers = returning(FRAMES, partitions_def=days)
    lake.materialize(numbers, range_of=ALL)
    lake.materialize(
        report, dg.AssetSpec("numbers", partitions_def=days, metadata=DAILY["metadata"])
    )
    assert seen == {DAYS[0]: 1, DAYS[1]: 2, DAYS[2]: 2}


def test_a_partition_with_an_empty_frame_is_emptied_and_one_with_none_is_left(lake: Lake) -> None:
    lake.materialize(returning(FRAMES), range_of=ALL)
    given = {DAYS[0]: None, DAYS[1]: pl.DataFrame(), DAYS[2]: frame(DAYS[2], 7)}
    lake.materialize(returning(given, dict[str, pl.DataFrame | None]), range_of=ALL)
    assert lake.column("id", "numbers") == [0, 7, 10]
    lake.materialize(returning(dict.fromkeys(DAYS), Any), range_of=ALL)
    assert lake.table("numbers").snapshot().version == 1


def test_multi_partitions_are_keyed_as_dagster_spells_them(lake: Lake) -> None:
    given = {
        f"{color}|{day}": frame(day, number).with_columns(color=pl.lit(color))
        for color in ("blue", "red")
        for number, day in enumerate(DAYS[:1])
    }
    multi = dg.MultiPartitionsDefinition(
        {
            "color": dg.StaticPartitionsDefinition(["blue", "red"]),
            "day": dg.StaticPartitionsDefinition(DAYS),
        }
    )
    expr = {"partition_expr": {"color": "color", "day": "day"}}
    numbers = returning(given, partitions_def=multi, metadata=expr)
    lake.materialize(numbers, range_of=(f"blue|{DAYS[0]}", f"red|{DAYS[0]}"))
    assert lake.column("color", "numbers") == ["blue", "red"]


@pytest.mark.parametrize(
    ("given", "kind", "problem"),
    [
        ({**FRAMES, "2024-02-01": frame("2024-02-01", 1)}, InvalidArgument, "2024-02-01, which"),
        ({DAYS[0]: FRAMES[DAYS[0]]}, InvalidArgument, "no frame for 2024-01-02, 2024-01-03"),
        ({**FRAMES, DAYS[1]: FRAMES[DAYS[2]]}, PartitionMismatch, "the part 2024-01-02 that"),
        (
            {**FRAMES, DAYS[1]: FRAMES[DAYS[1]].with_columns(more=1)},
            SchemaMismatch,
            "more is in one of 2024-01-01 and 2024-01-02",
        ),
    ],
)
def test_frames_that_do_not_fit_the_run_are_refused(lake: Lake, given, kind, problem) -> None:
    error = lake.fail(returning(given), range_of=ALL)
    assert isinstance(error, kind)
    assert problem in str(error)
    assert not list((lake.root / "public" / "numbers" / "_delta_log").glob("*.json"))


def test_frames_of_an_asset_without_partitions_are_an_error(lake: Lake) -> None:
    @dg.asset
    def plain() -> pl.DataFrame:
        return frame(DAYS[0], 1)

    @dg.asset
    def report(plain: dict[str, pl.DataFrame]) -> None: ...

    error = lake.fail(plain, report)
    assert isinstance(error, InvalidArgument)
    assert "the input is not partitioned: annotate it with polars.DataFrame" in str(error)

    @dg.asset
    def numbers() -> dict[str, pl.DataFrame]:
        return FRAMES

    assert "numbers is not partitioned" in str(lake.fail(numbers))


def test_integers_are_not_rounded_to_the_numbers_of_another_frame(lake: Lake) -> None:
    """pandas has floating point numbers for integers with nulls."""
    numbers = pd.DataFrame({"id": [1, None], "day": DAYS[1]})
    exact = {DAYS[0]: pa.table({"id": [2**53], "day": DAYS[:1]}), DAYS[1]: numbers, DAYS[2]: None}
    lake.materialize(returning({**exact, DAYS[1]: None}, dict), range_of=ALL)
    lake.materialize(returning(exact, dict), range_of=ALL)
    assert sorted(str(row["id"]) for row in lake.rows("numbers")) == ["1", str(2**53), "None"]
    given = {**exact, DAYS[0]: pa.table({"id": [2**53 + 1], "day": DAYS[:1]})}
    error = lake.fail(returning(given, dict), range_of=ALL)
    assert isinstance(error, SchemaMismatch)
    assert "which would round its values" in str(error)
    assert lake.table("numbers").snapshot().version == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (pa.array([1], pa.decimal128(20, 2)), pa.array([0.5])),
        (pa.array([[2**53 + 1]]), pa.array([[0.5]])),
        (pa.array([{"n": 2**53 + 1}]), pa.array([{"n": 0.5}])),
        (
            pa.array([[("k", 2**53 + 1)]], pa.map_(pa.string(), pa.int64())),
            pa.array([[("k", 0.5)]], pa.map_(pa.string(), pa.float64())),
        ),
    ],
    ids=["decimal", "list", "struct", "map"],
)
def test_values_that_floating_point_numbers_may_round_are_refused(
    lake: Lake, first, second
) -> None:
    frames = {
        day: pa.table({"day": [day], "value": value})
        for day, value in zip(DAYS, (first, second, first), strict=True)
    }
    error = lake.fail(returning(frames, dict), range_of=ALL)
    assert isinstance(error, SchemaMismatch)
    assert "which would round its values" in str(error)


def test_a_partition_that_is_left_has_its_own_figures(lake: Lake) -> None:
    lake.materialize(returning(FRAMES), range_of=ALL)
    given = {DAYS[0]: None, DAYS[1]: frame(DAYS[1], 1, 2, 3), DAYS[2]: None}
    run = lake.materialize(returning(given, dict[str, pl.DataFrame | None]), range_of=ALL)
    figures = {
        event.partition: {
            key: value.value
            for key, value in event.metadata.items()
            if key in {"dagster/partition_row_count", "delta/rows_written"}
        }
        for event in run.asset_materializations_for_node("numbers")
    }
    assert figures[DAYS[1]] == {"dagster/partition_row_count": 3, "delta/rows_written": 3}
    assert figures[DAYS[0]]["dagster/partition_row_count"] == 2
    assert figures[DAYS[2]]["dagster/partition_row_count"] == 2
