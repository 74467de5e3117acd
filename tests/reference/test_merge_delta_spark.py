"""Our MERGE against delta-spark's: the same rows, the same changes, read by all."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dagster_delta import DeltaTable
from dagster_delta.errors import ConstraintViolation
from tests.families import family
from tests.reference.changed_tables import (
    ENGINES,
    ChangedTable,
    Statement,
    TableShop,
    changes,
    check_against,
    rows,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_delta.table.operations.merge import MergeBuilder

pytestmark = pytest.mark.delta_spark

SHAPES = (
    "plain",
    "partitioned",
    "mapped_by_id",
    "widened",
    "vectors",
    "mapped_vectors",
    "widened_vectors",
)

# Every third row, ten new ones, and a null key; types as the table has them, but for the key.
SOURCE = """SELECT cast(id AS INT) AS id, concat('m', id) AS v, cast(id % 5 AS INT) AS n,
    cast(id / 8 AS DECIMAL(10,2)) AS price, TIMESTAMP_NTZ '2025-05-05 05:05:05.5' AS at,
    if(id % 2 = 0, null, DATE '2025-01-01') AS day,
    named_struct('a', nullif(cast(-id AS INT), 0), 'b', nullif('merged', '')) AS s,
    array(nullif(1, 0), nullif(cast(id AS INT), 0)) AS xs, if(id % 4 = 0, null, cast(id % 4 AS INT)) AS p
    FROM range(1, 150, {step}) UNION ALL
    SELECT null, 'null', 1, 1, TIMESTAMP_NTZ '2025-05-05 05:05:05.5', null, null, null, 3"""

Merge = tuple[str, int, str, str, Callable[["MergeBuilder"], "MergeBuilder"]]

MERGES: list[Merge] = [
    (
        "upsert",
        7,
        "o.id = m.id",
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
        lambda merge: merge.when_matched_update_all().when_not_matched_insert_all(),
    ),
    (
        "clauses in order",
        5,
        "o.id = m.id AND o.id > 10",
        "WHEN MATCHED AND m.n = 1 THEN DELETE "
        "WHEN MATCHED AND o.n > 4 THEN UPDATE SET v = concat(o.v, m.v), s.b = m.s.b, p = m.p "
        "WHEN MATCHED AND m.id < 100 THEN UPDATE SET price = m.price + o.price, n = m.id "
        "WHEN NOT MATCHED AND m.n = 2 THEN INSERT (id, v, p) VALUES (m.id + 1000, 'new', m.p) "
        "WHEN NOT MATCHED AND m.n > 2 THEN INSERT *",
        lambda merge: (
            merge.when_matched_delete("m.n = 1")
            .when_matched_update({"v": "concat(o.v, m.v)", "s.b": "m.s.b", "p": "m.p"}, "o.n > 4")
            .when_matched_update({"price": "m.price + o.price", "n": "m.id"}, "m.id < 100")
            .when_not_matched_insert({"id": "m.id + 1000", "v": "'new'", "p": "m.p"}, "m.n = 2")
            .when_not_matched_insert_all("m.n > 2")
        ),
    ),
    (
        "not matched by source",
        3,
        "o.id = m.id AND o.p <=> m.p",
        "WHEN MATCHED THEN UPDATE SET day = m.day "
        "WHEN NOT MATCHED BY SOURCE AND o.n = 3 THEN UPDATE SET v = upper(o.v), p = 2 "
        "WHEN NOT MATCHED BY SOURCE AND o.id BETWEEN 30 AND 50 THEN DELETE",
        lambda merge: (
            merge.when_matched_update({"day": "m.day"})
            .when_not_matched_by_source_update({"v": "upper(o.v)", "p": "2"}, "o.n = 3")
            .when_not_matched_by_source_delete("o.id BETWEEN 30 AND 50")
        ),
    ),
    (
        "delete",
        9,
        "o.id = m.id",
        "WHEN MATCHED THEN DELETE",
        lambda merge: merge.when_matched_delete(),
    ),
    (
        "only new rows",
        4,
        "o.id = m.id",
        "WHEN NOT MATCHED THEN INSERT *",
        lambda merge: merge.when_not_matched_insert_all(),
    ),
    (
        "nothing",
        50,
        "o.id = m.id AND o.id < 0",
        "WHEN MATCHED THEN DELETE",
        lambda merge: merge.when_matched_delete(),
    ),
]


def statements() -> list[Statement]:
    return [(name, _statement(step, on, sql)) for name, step, on, sql, _ in MERGES]


def _statement(step: int, on: str, sql: str) -> Any:
    def run(session: SparkSession, uri: str) -> None:
        session.sql(SOURCE.format(step=step)).createOrReplaceTempView("m")
        session.sql(f"MERGE INTO delta.`{uri}` AS o USING m ON {on} {sql}")

    return run


@pytest.fixture(scope="module")
def sources(delta_spark: SparkSession) -> dict[int, pa.Table]:
    """The rows of every source by its step, in one job."""
    steps = sorted({step for _, step, *_ in MERGES})
    parts = [f"SELECT {step} AS step, * FROM ({SOURCE.format(step=step)})" for step in steps]
    found = delta_spark.sql(" UNION ALL ".join(parts)).toArrow()
    return {
        step: found.filter(pc.equal(found["step"], step)).drop_columns(["step"]) for step in steps
    }


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("shape", "feed"),
    family(
        [("plain", False), ("vectors", False), *((shape, True) for shape in SHAPES)],
        ("mapped_vectors", True),
    ),
)
def test_every_merge_gives_the_rows_that_delta_spark_gives(
    shape: str,
    feed: bool,
    engine: str,
    delta_spark: SparkSession,
    table_shop: TableShop,
    sources: dict[int, pa.Table],
    tmp_path: Path,
) -> None:
    reference = table_shop.changed(shape, "merge", statements())
    uri = table_shop.copy(shape, tmp_path / "ours", feed=feed)
    for index, (_, step, on, _, describe) in enumerate(MERGES):
        source: object = sources[step]
        if engine == "spark" and index % 2:
            source = delta_spark.sql(SOURCE.format(step=step))
        merge = DeltaTable(uri).merge(source, on, source_alias="m", target_alias="o", engine=engine)
        describe(merge).execute()
    check_against(delta_spark, reference, uri, shape, shift=0 if feed else 1)
    _compare_commits(delta_spark, uri, reference)
    if feed:
        assert changes(delta_spark, uri, reference.first) == table_shop.changes(reference)


_COUNTS = (
    "numSourceRows",
    "numTargetRowsInserted",
    "numTargetRowsUpdated",
    "numTargetRowsDeleted",
    "numTargetRowsMatchedUpdated",
    "numTargetRowsMatchedDeleted",
    "numTargetRowsNotMatchedBySourceUpdated",
    "numTargetRowsNotMatchedBySourceDeleted",
)


def _compare_commits(session: SparkSession, uri: str, reference: ChangedTable) -> None:
    """Both logs say the same of what each merge did, newest first."""
    ours, other = (
        [
            each
            for each in session.sql(f"DESCRIBE HISTORY delta.`{table}`").collect()
            if each.operation == "MERGE"
        ]
        for table in (uri, reference.uri)
    )
    assert len(ours) == len(other) == len(set(reference.versions.values()))
    for mine, theirs in zip(ours, other, strict=True):
        assert set(mine.operationParameters) == set(theirs.operationParameters)
        for count in _COUNTS:
            assert mine.operationMetrics[count] == theirs.operationMetrics[count], (mine, count)


@pytest.mark.parametrize(("shape", "engine"), [("plain", "spark"), ("vectors", "arrow")])
@pytest.mark.exhaustive
def test_what_delta_spark_finds_ambiguous_so_do_we(
    shape: str, engine: str, delta_spark: SparkSession, table_shop: TableShop, tmp_path: Path
) -> None:
    uri = table_shop.copy(shape, tmp_path / shape)
    source = delta_spark.sql("SELECT * FROM VALUES (5L, 'a'), (5L, 'b'), (6L, 'c') AS m(id, v)")
    source.createOrReplaceTempView("m")
    sql = "MERGE INTO delta.`{uri}` AS o USING m ON o.id = m.id WHEN MATCHED THEN {action}"

    def merge() -> MergeBuilder:
        return DeltaTable(uri).merge(
            source.toArrow(), "o.id = m.id", source_alias="m", target_alias="o", engine=engine
        )

    with pytest.raises(Exception, match="DELTA_MULTIPLE_SOURCE_ROW_MATCHING"):
        delta_spark.sql(sql.format(uri=uri, action="UPDATE SET v = m.v"))
    with pytest.raises(ConstraintViolation, match="several rows of the source") as refused:
        merge().when_matched_update({"v": "m.v"}).execute()
    assert refused.value.examples == ("{'id': 5}",)
    copy = str(tmp_path / "copy")
    shutil.copytree(uri, copy)
    delta_spark.sql(sql.format(uri=copy, action="DELETE"))
    merge().when_matched_delete().execute()
    assert rows(delta_spark, uri) == rows(delta_spark, copy)
