"""Every pair of operations of two writers, at every distance: both succeed where an order exists."""

from __future__ import annotations

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
CASES = [(*pair, *table) for table in TABLES for pair in PAIRS]
# In `make test`: where rows decide, and where files do.
EXAMPLES = [
    case
    for case in CASES
    if case[2:] in {("same file", "WriteSerializable", True), ("same row", "Serializable", False)}
]
BY_ROWS = ("same file", "WriteSerializable", True)
ON_SPARK = [
    ("update", "delete", *BY_ROWS),
    ("optimize", "merge", *BY_ROWS),
    ("append", "add_column", *BY_ROWS),
]
BESIDE_DELTA_SPARK = [
    ("update", "delete", *BY_ROWS),
    ("optimize", "update", *BY_ROWS),
    ("delete", "optimize", *BY_ROWS),
    ("merge", "append", "same row", "Serializable", False),
]
# One in four pairs: each takes a second or two, and the embedded writers try all of them.
SOME = [case for case in CASES if case[2:] == BY_ROWS and not excludes(*case[:3])][::4]


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Templates:
    return Templates(tmp_path_factory.mktemp("templates"))


@pytest.mark.parametrize(
    ("mine", "theirs", "distance", "isolation", "has_vectors"), family(CASES, *EXAMPLES)
)
def test_both_writers_succeed(
    templates: Templates,
    tmp_path: Path,
    mine: str,
    theirs: str,
    distance: str,
    isolation: str,
    *,
    has_vectors: bool,
) -> None:
    def act(uri: str, row: int) -> None:
        OPERATIONS[theirs](Place(DeltaTable(uri), ARROW), row)

    def check() -> None:
        pair = (mine, theirs, distance)
        copy = tmp_path / "table"
        check_pair(templates, copy, pair, isolation, ARROW, act, has_vectors=has_vectors)

    if excludes(mine, theirs, distance):
        with pytest.raises(InvalidArgument, match="n4"):
            check()
    else:
        check()


@pytest.mark.classic("the first writer is a classic session; statements on Connect are conformance")
@pytest.mark.parametrize(
    ("mine", "theirs", "distance", "isolation", "has_vectors"),
    family(dict.fromkeys([*ON_SPARK, *SOME]), *ON_SPARK),
)
def test_a_writer_on_spark_succeeds_beside_an_embedded_one(
    spark: SparkSession,
    templates: Templates,
    tmp_path: Path,
    mine: str,
    theirs: str,
    distance: str,
    isolation: str,
    *,
    has_vectors: bool,
) -> None:
    def act(uri: str, row: int) -> None:
        OPERATIONS[theirs](Place(DeltaTable(uri), ARROW), row)

    pair, engine = (mine, theirs, distance), Engine("spark", spark)
    copy = tmp_path / "table"
    check_pair(templates, copy, pair, isolation, engine, act, has_vectors=has_vectors)


@pytest.mark.parametrize(
    ("mine", "theirs", "distance", "isolation", "has_vectors"),
    family(dict.fromkeys([*BESIDE_DELTA_SPARK, *SOME]), *BESIDE_DELTA_SPARK),
)
def test_both_succeed_where_the_second_writer_is_delta_spark(
    delta_spark: SparkSession,
    templates: Templates,
    tmp_path: Path,
    mine: str,
    theirs: str,
    distance: str,
    isolation: str,
    *,
    has_vectors: bool,
) -> None:
    def act(uri: str, row: int) -> None:
        run_sql(delta_spark, theirs, uri, row)

    pair = (mine, theirs, distance)
    copy = tmp_path / "table"
    check_pair(templates, copy, pair, isolation, ARROW, act, has_vectors=has_vectors)
