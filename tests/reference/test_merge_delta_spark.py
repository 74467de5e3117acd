"""Our MERGE against delta-spark's: the same rows, the same changes, read by all."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.errors import ConstraintViolation
from tests.golden.answers import rows_of
from tests.reference.test_dml_delta_spark import BEYOND_DELTALAKE, build, changes, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_delta.table.merge_builder import MergeBuilder

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


@pytest.mark.parametrize(
    ("shape", "feed"),
    [("plain", False), ("vectors", False), *((shape, True) for shape in SHAPES)],
)
def test_every_merge_gives_the_rows_that_delta_spark_gives(
    shape: str, feed: bool, delta_spark: SparkSession, tmp_path: Path
) -> None:
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    build(delta_spark, theirs, shape, feed=feed)
    shutil.copytree(theirs, ours)
    for name, step, on, sql, describe in MERGES:
        source = delta_spark.sql(SOURCE.format(step=step))
        source.createOrReplaceTempView("m")
        delta_spark.sql(f"MERGE INTO delta.`{theirs}` AS o USING m ON {on} {sql}")
        merge = DeltaTable(ours).merge(source.toArrow(), on, source_alias="m", target_alias="o")
        result = describe(merge).execute()
        expected = rows(delta_spark, theirs)
        assert rows(delta_spark, ours) == expected, name
        table = DeltaTable(ours)
        assert rows_of(table.snapshot().scan().to_arrow()) == expected, name
        assert table.snapshot().num_records == sum(expected.values()), name
        _compare_commits(delta_spark, table, theirs, result, name, feed=feed)
        if shape not in BEYOND_DELTALAKE:
            query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(ours))
            read = pa.table(query.execute("SELECT id FROM t").read_all())
            assert read.num_rows == sum(expected.values()), name


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


def _compare_commits(
    session: SparkSession, table: DeltaTable, theirs: str, result: Any, name: str, *, feed: bool
) -> None:
    version = table.version()
    assert version == DeltaTable(theirs).version(), name
    if result.skipped:
        return
    ours, other = (
        session.sql(f"DESCRIBE HISTORY delta.`{uri}` LIMIT 1").collect()[0]
        for uri in (table.uri, theirs)
    )
    assert ours.operation == other.operation == "MERGE"
    assert set(ours.operationParameters) == set(other.operationParameters), name
    for count in _COUNTS:
        assert ours.operationMetrics[count] == other.operationMetrics[count], (name, count)
    if feed:
        assert changes(session, table.uri, version) == changes(session, theirs, version), name


@pytest.mark.parametrize("shape", ["plain", "vectors"])
def test_what_delta_spark_finds_ambiguous_so_do_we(
    shape: str, delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path / shape)
    build(delta_spark, uri, shape, feed=False)
    source = delta_spark.sql("SELECT * FROM VALUES (5L, 'a'), (5L, 'b'), (6L, 'c') AS m(id, v)")
    source.createOrReplaceTempView("m")
    sql = "MERGE INTO delta.`{uri}` AS o USING m ON o.id = m.id WHEN MATCHED THEN {action}"

    def merge() -> MergeBuilder:
        return DeltaTable(uri).merge(
            source.toArrow(), "o.id = m.id", source_alias="m", target_alias="o"
        )

    with pytest.raises(Exception, match="DELTA_MULTIPLE_SOURCE_ROW_MATCHING"):
        delta_spark.sql(sql.format(uri=uri, action="UPDATE SET v = m.v"))
    with pytest.raises(ConstraintViolation, match="several rows of the source"):
        merge().when_matched_update({"v": "m.v"}).execute()
    copy = str(tmp_path / "copy")
    shutil.copytree(uri, copy)
    delta_spark.sql(sql.format(uri=copy, action="DELETE"))
    merge().when_matched_delete().execute()
    assert rows(delta_spark, uri) == rows(delta_spark, copy)
