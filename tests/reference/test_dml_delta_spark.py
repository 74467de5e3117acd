"""Our DELETE and UPDATE against delta-spark's: the same rows, the same changes, read by all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from tests.families import family
from tests.golden.answers import rows_of
from tests.reference.changed_tables import (
    ENGINES,
    SHAPES,
    Statement,
    TableShop,
    changes,
    check_against,
    rows,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.delta_spark

Operation = tuple[str, str, Callable[[DeltaTable, str], Any]]

OPERATIONS: list[Operation] = [
    (
        "deletes",
        "DELETE FROM {t} WHERE n = 3 AND id > 20",
        lambda table, engine: table.delete("n = 3 AND id > 20", engine=engine),
    ),
    (
        "more deletes",
        "DELETE FROM {t} WHERE s.a % 6 = 5 OR p IS NULL AND day < DATE '2024-01-10'",
        lambda table, engine: table.delete(
            "s.a % 6 = 5 OR p IS NULL AND day < DATE '2024-01-10'", engine=engine
        ),
    ),
    (
        "updates",
        "UPDATE {t} SET v = concat(v, '!'), n = n + 1, price = price * 2 WHERE id % 9 = 2",
        lambda table, engine: table.update(
            {"v": "concat(v, '!')", "n": "n + 1", "price": "price * 2"}, "id % 9 = 2", engine=engine
        ),
    ),
    (
        "moves",
        "UPDATE {t} SET p = NULL, s.b = 'new', at = TIMESTAMP_NTZ '2020-02-29 12:00:00.000001' "
        "WHERE p = 2 AND id > 40",
        lambda table, engine: table.update(
            {"p": "NULL", "s.b": "'new'", "at": "TIMESTAMP_NTZ '2020-02-29 12:00:00.000001'"},
            "p = 2 AND id > 40",
            engine=engine,
        ),
    ),
    (
        "casts",
        "UPDATE {t} SET n = '7', price = 1.555, v = id WHERE id BETWEEN 50 AND 60",
        lambda table, engine: table.update(
            {"n": "'7'", "price": "1.555", "v": "id"}, "id BETWEEN 50 AND 60", engine=engine
        ),
    ),
    (
        "drops",
        "DELETE FROM {t} WHERE p = 1",
        lambda table, engine: table.delete("p = 1", engine=engine),
    ),
    (
        "nothing",
        "DELETE FROM {t} WHERE id = -1",
        lambda table, engine: table.delete("id = -1", engine=engine),
    ),
    (
        "all",
        "UPDATE {t} SET day = day, xs = NULL",
        lambda table, engine: table.update({"day": "day", "xs": "NULL"}, engine=engine),
    ),
]


def statements() -> list[Statement]:
    return [(name, _statement(sql)) for name, sql, _ in OPERATIONS]


def _statement(sql: str) -> Any:
    return lambda session, uri: session.sql(sql.format(t=f"delta.`{uri}`"))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("shape", family(SHAPES, "mapped_vectors"))
def test_every_operation_gives_the_rows_and_changes_that_delta_spark_gives(
    shape: str, engine: str, delta_spark: SparkSession, table_shop: TableShop, tmp_path: Path
) -> None:
    reference = table_shop.changed(shape, "dml", statements())
    uri = table_shop.copy(shape, tmp_path / "ours")
    for _, _, operation in OPERATIONS:
        operation(DeltaTable(uri), engine)
    check_against(delta_spark, reference, uri, shape)
    assert changes(delta_spark, uri, reference.first) == table_shop.changes(reference)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.exhaustive
@pytest.mark.parametrize("shape", ["partitioned", "partitioned_vectors"])
def test_without_a_change_data_feed_the_rows_are_the_same(
    shape: str,
    engine: str,
    delta_spark: SparkSession,
    table_shop: TableShop,
    tmp_path: Path,
) -> None:
    reference = table_shop.changed(shape, "dml", statements())
    uri = table_shop.copy(shape, tmp_path / "ours", feed=False)
    for _, _, operation in OPERATIONS:
        operation(DeltaTable(uri), engine)
    check_against(delta_spark, reference, uri, shape, shift=1)
    assert not Path(uri, "_change_data").exists()


@pytest.mark.parametrize(
    ("shape", "engine"),
    [
        ("plain", "spark"),
        ("partitioned", "arrow"),
        ("vectors", "arrow"),
        ("mapped_vectors", "spark"),
    ],
)
@pytest.mark.exhaustive
def test_delta_spark_goes_on_where_we_left_off(
    shape: str, engine: str, delta_spark: SparkSession, table_shop: TableShop, tmp_path: Path
) -> None:
    uri = table_shop.copy(shape, tmp_path / shape)
    table = DeltaTable(uri)
    model = {each["id"]: each for each in table.snapshot().scan().to_arrow().to_pylist()}
    for turn in range(2):
        table.refresh()
        table.delete(f"id % 20 = {turn}", engine=engine)
        table.update({"v": f"'ours {turn}'"}, f"id % 20 = {turn + 5}", engine=engine)
        delta_spark.sql(f"DELETE FROM delta.`{uri}` WHERE id % 20 = {turn + 10}")
        delta_spark.sql(f"UPDATE delta.`{uri}` SET v = 'theirs {turn}' WHERE id % 20 = {turn + 15}")
        for each in list(model):
            if each % 20 in (turn, turn + 10):
                del model[each]
            elif each % 20 == turn + 5:
                model[each]["v"] = f"ours {turn}"
            elif each % 20 == turn + 15:
                model[each]["v"] = f"theirs {turn}"
    delta_spark.sql(f"OPTIMIZE delta.`{uri}`")
    found = table.refresh().scan().to_arrow()
    assert {each["id"]: each["v"] for each in found.to_pylist()} == {
        key: each["v"] for key, each in model.items()
    }
    assert rows_of(found) == rows(delta_spark, uri)


@pytest.mark.parametrize("vectors", ["true", "false"])
def test_large_vectors_are_read_by_delta_spark_and_deltalake(
    vectors: str, delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path / "large")
    table = DeltaTable(uri, must_exist=False)
    data = pa.table({"id": range(300_000), "v": ["x"] * 300_000})
    for start in range(0, 300_000, 100_000):
        table.append(
            data.slice(start, 100_000), properties={"delta.enableDeletionVectors": vectors}
        )
    table.delete("id % 7 = 3 AND id < 200000")
    table.delete("id % 11 = 3")
    expected = [n for n in range(300_000) if not ((n % 7 == 3 and n < 200_000) or n % 11 == 3)]
    found = delta_spark.read.format("delta").load(uri).toArrow()["id"].to_pylist()
    assert sorted(found) == expected
    theirs = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(uri))
    read = pa.table(theirs.execute("SELECT id FROM t").read_all())
    assert sorted(read["id"].to_pylist()) == expected
    files = list(Path(uri).glob("deletion_vector_*.bin"))
    assert len(files) == (2 if vectors == "true" else 0)


def test_statistics_with_wide_bounds_still_skip_files_in_delta_spark(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path / "skipped")
    table = DeltaTable(uri, must_exist=False)
    for start in (0, 10, 20):
        table.append(
            pa.table({"id": range(start, start + 10)}),
            properties={"delta.enableDeletionVectors": "true"},
        )
    table.delete("id % 10 = 4")
    frame = delta_spark.read.format("delta").load(uri).where("id = 15")
    assert [row.id for row in frame.collect()] == [15]
    assert len(frame.inputFiles()) == 1
