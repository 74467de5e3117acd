"""Column changes judged by delta-spark: it writes while they run, and reads what they leave."""

from __future__ import annotations

import itertools
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pytest

from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.operations.column_change import ColumnChangeProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROPERTIES = """
    'delta.columnMapping.mode' = 'name', 'delta.enableDeletionVectors' = 'true',
    'dagsterDelta.enableColumnChange' = 'true'
"""


def rows_of(
    session: SparkSession, uri: str, version: int | None = None
) -> list[tuple[object, ...]]:
    at = "" if version is None else f" VERSION AS OF {version}"
    return sorted(tuple(each) for each in session.sql(f"SELECT * FROM delta.`{uri}`{at}").collect())


@pytest.mark.parametrize("engine", ["arrow", "spark"])
@pytest.mark.exhaustive
def test_delta_spark_writes_throughout_and_reads_what_a_change_leaves(
    delta_spark: SparkSession, tmp_path: Path, engine: str
) -> None:
    """Appends, deletes, updates and compacts after every step; no row is lost or unconverted."""
    uri = str(tmp_path / "table")
    delta_spark.sql(
        f"CREATE TABLE delta.`{uri}` (id BIGINT, v STRING, part INT) USING delta "
        f"PARTITIONED BY (part) TBLPROPERTIES ({PROPERTIES})"
    )
    delta_spark.sql(
        f"INSERT INTO delta.`{uri}` SELECT id, CAST(id AS STRING), CAST(id % 2 AS INT) FROM range(100)"
    )
    expected: dict[int, int] = {each: each for each in range(100)}
    steps: list[tuple[str, dict[int, int | None]]] = [
        (
            "INSERT INTO {t} VALUES (1000, '1000', 0), (1001, '1001', 1)",
            {1000: 1000, 1001: 1001},
        ),
        ("DELETE FROM {t} WHERE id IN (7, 1001)", {7: None, 1001: None}),
        ("UPDATE {t} SET v = '-5' WHERE id = 5", {5: -5}),
        ("OPTIMIZE {t}", {}),
        ("INSERT INTO {t} VALUES (2001, '2001', 1)", {2001: 2001}),
    ]
    statements = iter(steps)

    def write(progress: ColumnChangeProgress) -> None:
        if progress.state is None:
            return
        for statement, changes in itertools.islice(statements, 1):
            delta_spark.sql(statement.format(t=f"delta.`{uri}`"))
            for key, value in changes.items():
                expected.pop(key, None)
                if value is not None:
                    expected[key] = value

    table = DeltaTable(uri)
    before = table.version()
    table.change_column("v", "INT", batch_bytes=1, engine=engine, on_progress=write)
    assert next(statements, None) is None, "not every statement found its moment"

    found = [(key, value, key % 2) for key, value in sorted(expected.items())]
    assert rows_of(delta_spark, uri) == found
    ours = table.snapshot().scan().to_arrow().sort_by("id").to_pylist()
    assert [tuple(each.values()) for each in ours] == found
    assert rows_of(delta_spark, uri, before)[:2] == [(0, "0", 0), (1, "1", 1)]

    delta_spark.sql(f"INSERT INTO delta.`{uri}` VALUES (3000, 3000, 0)")
    delta_spark.sql(f"UPDATE delta.`{uri}` SET v = v + 1 WHERE v >= 2000")
    table.refresh()
    assert table.snapshot().scan(where="v > 2000").to_arrow()["v"].to_pylist() != []
    assert rows_of(delta_spark, uri)[-1] == (3000, 3001, 0)


@pytest.mark.exhaustive
def test_rows_keep_their_ids_as_delta_spark_counts_them(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path / "table")
    delta_spark.sql(
        f"CREATE TABLE delta.`{uri}` (id BIGINT, v STRING) USING delta "
        f"TBLPROPERTIES ({PROPERTIES}, 'delta.enableRowTracking' = 'true')"
    )
    for start in (0, 10):
        delta_spark.sql(
            f"INSERT INTO delta.`{uri}` SELECT id, CAST(id AS STRING) FROM range({start}, {start + 10})"
        )
    asked = f"SELECT id, _metadata.row_id, _metadata.row_commit_version FROM delta.`{uri}`"
    before = sorted(map(tuple, delta_spark.sql(asked).collect()))
    DeltaTable(uri).change_column("v", "INT")
    assert sorted(map(tuple, delta_spark.sql(asked).collect())) == before


def test_delta_spark_reads_a_change_in_a_struct_and_in_an_array(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path / "table")
    table = DeltaTable(uri, must_exist=False)
    table.append(
        pa.table({"id": [1, 2], "s": [{"a": "1", "b": "x"}, None], "l": [["7", None], []]})
    )
    table.change_column("s.a", "INT", enable_features=True)
    table.change_column("l.element", "DECIMAL(5,1)")
    (first, second) = delta_spark.sql(f"SELECT * FROM delta.`{uri}` ORDER BY id").collect()
    assert (first.s.a, first.s.b, [str(first.l[0]), first.l[1]]) == (1, "x", ["7.0", None])
    assert (second.s, second.l) == (None, [])


@pytest.mark.parametrize("engine", ["arrow", "spark"])
@pytest.mark.exhaustive
def test_delta_spark_goes_on_with_what_a_statement_changed_and_renamed(
    delta_spark: SparkSession, tmp_path: Path, engine: Literal["arrow", "spark"]
) -> None:
    uri = str(tmp_path / "table")
    delta_spark.sql(f"CREATE TABLE delta.`{uri}` (id BIGINT, v STRING, n INT) USING delta")
    delta_spark.sql(f"INSERT INTO delta.`{uri}` VALUES (1, '1', 1), (2, '2', 2)")
    DeltaTable(uri).alter(
        "ALTER TABLE t RENAME n TO m, CHANGE COLUMN v w DECIMAL(6,2) NOT NULL DEFAULT 7.5 "
        "COMMENT 'EUR' FIRST, ADD CONSTRAINT positive CHECK (w > 0)",
        enable_features=True,
        engine=engine,
    )
    table = f"delta.`{uri}`"
    assert rows_of(delta_spark, uri) == [
        (Decimal("1.00"), 1, 1),
        (Decimal("2.00"), 2, 2),
    ]
    described = {each.col_name: each for each in delta_spark.sql(f"DESCRIBE {table}").collect()}
    assert (described["w"].data_type, described["w"].comment) == ("decimal(6,2)", "EUR")
    delta_spark.sql(f"INSERT INTO {table} (id, m) VALUES (3, 3)")
    delta_spark.sql(f"UPDATE {table} SET w = w + 1 WHERE id = 1")
    assert rows_of(delta_spark, uri) == [
        (Decimal("2.00"), 1, 1),
        (Decimal("2.00"), 2, 2),
        (Decimal("7.50"), 3, 3),
    ]
    for bad in ("(CAST(NULL AS DECIMAL(6,2)), 4, 4)", "(-1, 4, 4)"):
        with pytest.raises(Exception, match=r"(?i)not null|positive"):
            delta_spark.sql(f"INSERT INTO {table} VALUES {bad}")
    assert rows_of(delta_spark, uri, 1) == [(1, "1", 1), (2, "2", 2)]
    ours = DeltaTable(uri).snapshot().scan().to_arrow().sort_by("id")
    assert ours["w"].to_pylist() == [Decimal("2.00"), Decimal("2.00"), Decimal("7.50")]
