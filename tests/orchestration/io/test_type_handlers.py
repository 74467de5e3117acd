"""An annotation, or the default, decides what an input is loaded as."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Optional

import dagster as dg
import narwhals
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dagster_delta import DeltaIOManager, TableInput, TypeHandler
from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.io.type_handlers import type_handler_of
from tests.orchestration.conftest import Lake, library_error


@pytest.mark.parametrize(
    ("annotation", "name"),
    [
        (pa.Table, "pyarrow"),
        (pa.RecordBatchReader, "pyarrow_reader"),
        (pd.DataFrame, "pandas"),
        (pl.DataFrame, "polars"),
        (pl.LazyFrame, "polars_lazy"),
        (narwhals.DataFrame, "narwhals"),
        (Optional[pd.DataFrame], "pandas"),  # noqa: UP045 - both spellings are in use
        (pa.Table | None, "pyarrow"),
    ],
)
def test_the_annotation_decides(annotation, name):
    assert type_handler_of(annotation, "pyspark", name="flights").name == name


def test_a_pyspark_frame_of_either_kind_is_one_type():
    from pyspark.sql import DataFrame
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    for annotation in (DataFrame, ClassicDataFrame):
        assert type_handler_of(annotation, None, name="flights").name == "pyspark"


def test_narwhals_frames_are_loaded_and_written(lake: Lake, events) -> None:
    @dg.asset
    def late(flights: narwhals.DataFrame) -> narwhals.DataFrame:  # type: ignore[type-arg]
        return flights.filter(narwhals.col("delay") > 60)

    result = lake.materialize(
        events(pa.table({"id": [1, 2], "delay": [5, 70]}), name="flights"), late
    )
    assert lake.rows("late") == [{"id": 2, "delay": 70}]
    assert lake.metadata(result, "late")["delta/input/flights"]["loaded_as"] == "narwhals.DataFrame"


def test_an_input_without_annotation_is_the_default():
    assert type_handler_of(Any, "polars_lazy", name="flights").name == "polars_lazy"


def test_without_annotation_and_default_the_error_lists_both():
    with pytest.raises(InvalidArgument, match=r"'flights'.*pandas\.DataFrame.*default_load_type"):
        type_handler_of(Any, None, name="flights")


@pytest.mark.parametrize("annotation", [int, list[int], pd.Series, pa.Array])
def test_any_other_annotation_is_an_error_that_lists_what_there_is(annotation):
    with pytest.raises(InvalidArgument, match=r"'flights'.*pyarrow\.Table"):
        type_handler_of(annotation, "pandas", name="flights")


def test_a_default_that_does_not_exist_is_an_error():
    with pytest.raises(InvalidArgument, match="not 'panda'"):
        type_handler_of(Any, "panda", name="flights")


@dataclass
class Plane:
    tailnum: str
    seats: int


PLANES = [Plane("N10156", 55), Plane("N102UW", 182)]


class PlaneLists(TypeHandler[list[Plane]]):
    name = "planes"
    supported_types = (list[Plane],)

    def load(self, table_input: TableInput) -> list[Plane]:
        return [Plane(**row) for row in table_input.scan.to_arrow().to_pylist()]

    def to_arrow(self, value: list[Plane]) -> pa.Table:
        schema = pa.schema([("tailnum", pa.string()), ("seats", pa.int64())])
        return pa.Table.from_pylist([asdict(plane) for plane in value], schema)


class PlaneIOManager(DeltaIOManager):
    @staticmethod
    def type_handlers() -> Sequence[TypeHandler[Any]]:
        return [PlaneLists()]


def materialize(
    lake: Lake, *assets, manager=PlaneIOManager, **options
) -> dg.ExecuteInProcessResult:
    resources = {"io_manager": manager(root_uri=str(lake.root), **options)}
    return dg.materialize(list(assets), instance=lake.instance, resources=resources)


def test_a_handler_writes_and_loads_its_type(lake: Lake) -> None:
    seen = []

    @dg.asset
    def planes() -> list[Plane]:
        return PLANES

    @dg.asset(ins={"planes": dg.AssetIn(metadata={"where": "seats > 100"})})
    def big_planes(planes: list[Plane]) -> list[Plane] | None:
        seen.extend(planes)
        return planes

    result = materialize(lake, planes, big_planes)
    assert lake.rows("planes") == [asdict(plane) for plane in PLANES]
    assert seen == PLANES[1:]
    assert lake.rows("big_planes") == [asdict(PLANES[1])]
    facts = lake.metadata(result, "big_planes")["delta/input/planes"]
    assert facts["loaded_as"].endswith("Plane]")


def test_a_handler_has_a_name_for_inputs_without_annotation(lake: Lake) -> None:
    seen = []

    @dg.asset
    def planes() -> list[Plane]:
        return PLANES

    @dg.asset
    def report(planes) -> None:
        seen.extend(planes)

    materialize(lake, planes, report, default_load_type="planes")
    assert seen == PLANES


class Fleet(list[Any]):
    pass


class NamedFleets(TypeHandler[Fleet]):
    supported_types = (f"{__name__.partition('.')[0]}.Fleet",)

    def load(self, table_input: TableInput) -> Fleet:
        return Fleet(table_input.scan.to_arrow().to_pylist())

    def to_arrow(self, value: Fleet) -> pa.Table:
        return pa.Table.from_pylist(value)


class Upper(TypeHandler[pd.DataFrame]):
    supported_types = (pd.DataFrame,)

    def load(self, table_input: TableInput) -> pd.DataFrame:
        return table_input.scan.to_pandas().rename(columns=str.upper)


class FleetIOManager(DeltaIOManager):
    @staticmethod
    def type_handlers() -> Sequence[TypeHandler[Any]]:
        return [NamedFleets(), Upper()]


def test_an_output_without_annotation_is_written_by_the_handler_of_its_class(lake: Lake) -> None:
    seen = []

    @dg.asset
    def planes():
        return Fleet([{"id": 1}])

    @dg.asset
    def report(planes: Fleet) -> None:
        seen.append(planes)

    materialize(lake, planes, report, manager=FleetIOManager)
    assert seen == [[{"id": 1}]]
    assert type(seen[0]) is Fleet


def test_a_handler_of_a_type_that_we_load_comes_first(lake: Lake) -> None:
    seen: list[str] = []

    @dg.asset
    def planes() -> pd.DataFrame:
        return pd.DataFrame({"id": [1]})

    @dg.asset
    def report(planes: pd.DataFrame) -> None:
        seen.extend(planes.columns)

    materialize(lake, planes, report, manager=FleetIOManager)
    assert seen == ["ID"]


def test_the_error_lists_the_types_of_all_handlers(lake: Lake) -> None:
    @dg.asset
    def report(planes: dict[int, int]) -> None: ...

    @dg.asset
    def planes() -> list[Plane]:
        return PLANES

    with pytest.raises(Exception, match="'planes'") as caught:
        materialize(lake, planes, report)
    message = str(library_error(caught.value))
    assert "Plane], pyspark.DataFrame" in message
    assert "TypeHandler" in message
