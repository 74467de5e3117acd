"""Every pair of operations of two writers, at every distance: both succeed where an order exists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_delta import DeltaTable
from dagster_delta.errors import InvalidArgument
from tests.conformance.engines import Engine
from tests.families import family
from tests.two_writers import (
    OPERATIONS,
    PAIRS,
    TABLES,
    Place,
    Templates,
    check_pair,
    excludes,
    run_sql,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARROW = Engine("arrow")


@dataclass(frozen=True)
class Case:
    """Two operations on one table."""

    mine: str
    theirs: str
    distance: str
    isolation: str = "WriteSerializable"
    has_vectors: bool = True

    def __str__(self) -> str:
        return "-".join(map(str, astuple(self)))

    @property
    def is_refused(self) -> bool:
        return excludes(self.mine, self.theirs, self.distance)

    def check(self, templates: Templates, copy: Path, engine: Engine, act: Act) -> None:
        check_pair(
            templates,
            copy,
            (self.mine, self.theirs, self.distance),
            self.isolation,
            engine,
            act,
            has_vectors=self.has_vectors,
        )


Act = Callable[[str, int], None]

CASES = [Case(*pair, *table) for table in TABLES for pair in PAIRS]
# In `make test`: where rows decide, and where files do.
EXAMPLES = [
    case
    for case in CASES
    if (case.distance, case.isolation, case.has_vectors)
    in {("same file", "WriteSerializable", True), ("same row", "Serializable", False)}
]
ON_SPARK = [
    Case("update", "delete", "same file"),
    Case("optimize", "merge", "same file"),
    Case("append", "add_column", "same file"),
]
BESIDE_DELTA_SPARK = [
    Case("update", "delete", "same file"),
    Case("optimize", "update", "same file"),
    Case("delete", "optimize", "same file"),
    Case("merge", "append", "same row", "Serializable", has_vectors=False),
]
# One in four pairs: each takes a second or two, and the embedded writers try all of them.
SOME = [
    case
    for case in (Case(mine, theirs, "same file") for mine in OPERATIONS for theirs in OPERATIONS)
    if not case.is_refused
][::4]


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Templates:
    return Templates(tmp_path_factory.mktemp("templates"))


def embedded(operation: str) -> Act:
    return lambda uri, row: OPERATIONS[operation](Place(DeltaTable(uri), ARROW), row)


@pytest.mark.parametrize("case", family(CASES, *EXAMPLES), ids=str)
def test_both_writers_succeed(templates: Templates, tmp_path: Path, case: Case) -> None:
    if case.is_refused:
        with pytest.raises(InvalidArgument, match="n4"):
            case.check(templates, tmp_path / "table", ARROW, embedded(case.theirs))
    else:
        case.check(templates, tmp_path / "table", ARROW, embedded(case.theirs))


@pytest.mark.classic("the first writer is a classic session; statements on Connect are conformance")
@pytest.mark.parametrize("case", family(dict.fromkeys([*ON_SPARK, *SOME]), *ON_SPARK), ids=str)
def test_a_writer_on_spark_succeeds_beside_an_embedded_one(
    spark: SparkSession, templates: Templates, tmp_path: Path, case: Case
) -> None:
    case.check(templates, tmp_path / "table", Engine("spark", spark), embedded(case.theirs))


@pytest.mark.parametrize(
    "case", family(dict.fromkeys([*BESIDE_DELTA_SPARK, *SOME]), *BESIDE_DELTA_SPARK), ids=str
)
def test_both_succeed_where_the_second_writer_is_delta_spark(
    delta_spark: SparkSession, templates: Templates, tmp_path: Path, case: Case
) -> None:
    def act(uri: str, row: int) -> None:
        run_sql(delta_spark, case.theirs, uri, row)

    case.check(templates, tmp_path / "table", ARROW, act)
