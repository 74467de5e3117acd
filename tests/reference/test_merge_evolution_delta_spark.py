"""Columns that a MERGE adds: the same ones, with the same rows, as delta-spark's evolution gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dagster_delta import DeltaTable
from dagster_delta.errors import SchemaMismatch
from tests.reference.changed_tables import ENGINES, Statement, TableShop, changes, check_against

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_delta.table.operations.merge import MergeBuilder

pytestmark = pytest.mark.delta_spark

ALL = "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"


def merge_all(merge: MergeBuilder) -> MergeBuilder:
    return merge.when_matched_update_all().when_not_matched_insert_all()


Merge = tuple[str, str, str, Callable[["MergeBuilder"], "MergeBuilder"]]

MERGES: list[Merge] = [
    (
        "a new column, and most of the table's lacking",
        "SELECT id, concat('m', id) AS v, cast(id AS INT) AS extra FROM range(0, 200, 7)",
        ALL,
        merge_all,
    ),
    (
        # Of 77 it is null on both sides.
        "fields of a struct: one that is new, one that is lacking",
        "SELECT id, if(id % 3 = 0 OR id = 77, null, named_struct('a', nullif(cast(id AS INT), -1), 'c', "
        "nullif(id, -1))) AS s FROM range(11, 300, 11)",
        ALL,
        merge_all,
    ),
    (
        "columns that are assigned by name",
        "SELECT id, id * 2 AS more, 'x' AS other FROM range(0, 400, 13)",
        "WHEN MATCHED THEN UPDATE SET more = m.more + 1 "
        "WHEN NOT MATCHED THEN INSERT (id, more) VALUES (m.id, m.more)",
        lambda merge: merge.when_matched_update({"more": "more + 1"}).when_not_matched_insert(
            {"id": "m.id", "o.more": "m.more"}
        ),
    ),
    (
        "a wider type",
        "SELECT id, id * 10000000000 AS n FROM range(0, 30, 3)",
        "WHEN MATCHED AND o.id > 1000 THEN UPDATE SET *",
        lambda merge: merge.when_matched_update_all("o.id > 1000"),
    ),
]


def statements() -> list[Statement]:
    return [(name, _statement(source, sql)) for name, source, sql, _ in MERGES]


def _statement(source: str, sql: str) -> Any:
    def run(session: SparkSession, uri: str) -> None:
        session.sql(source).createOrReplaceTempView("m")
        session.sql(
            f"MERGE WITH SCHEMA EVOLUTION INTO delta.`{uri}` AS o USING m ON o.id = m.id {sql}"
        )

    return run


@pytest.mark.parametrize(
    ("shape", "engine"),
    [
        ("partitioned", "arrow"),
        ("partitioned", "spark"),
        ("mapped_vectors", "arrow"),
        ("mapped_vectors", "spark"),
    ],
)
@pytest.mark.exhaustive
def test_a_merge_adds_the_columns_that_delta_spark_adds(
    shape: str, engine: str, delta_spark: SparkSession, table_shop: TableShop, tmp_path: Path
) -> None:
    reference = table_shop.changed(shape, "evolution", statements())
    uri = table_shop.copy(shape, tmp_path / "ours")
    for _, source, _, describe in MERGES:
        merge = DeltaTable(uri).merge(
            delta_spark.sql(source).toArrow(),
            "o.id = m.id",
            source_alias="m",
            target_alias="o",
            engine=engine,
            schema_mode="merge",
        )
        describe(merge).execute()
    assert _spelled(uri) == _spelled(reference.uri)
    check_against(delta_spark, reference, uri, shape)
    last = max(reference.versions.values())
    assert changes(delta_spark, uri, last) == changes(delta_spark, reference.uri, last)


def _spelled(uri: str) -> list[tuple[str, object]]:
    schema = DeltaTable(uri).snapshot().arrow_schema
    return [(each.name, each.type) for each in schema]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.exhaustive
def test_without_evolution_columns_of_the_source_are_left_alone(
    engine: str, delta_spark: SparkSession, table_shop: TableShop, tmp_path: Path
) -> None:
    uri = table_shop.copy("plain", tmp_path / "ours")
    source = delta_spark.sql(f"SELECT *, 1 AS extra FROM delta.`{uri}` WHERE id = 3").toArrow()
    table = DeltaTable(uri)
    before = table.schema()
    table.merge(source, "t.id = s.id", engine=engine).when_matched_update_all().execute()
    assert table.schema() == before
    named = table.merge(source, "t.id = s.id", engine=engine).when_matched_update({"extra": "1"})
    with pytest.raises(SchemaMismatch, match="extra"):
        named.execute()
    few = source.select(["id", "v"])
    with pytest.raises(SchemaMismatch, match="no column n"):
        table.merge(few, "t.id = s.id", engine=engine).when_matched_update_all().execute()
