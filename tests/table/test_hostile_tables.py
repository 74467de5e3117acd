"""A table of somebody else's cannot make a writer run its code, on either engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from dagster_delta import Column
from dagster_delta.errors import UnsupportedExpression
from dagster_delta.table.delta_table import DeltaTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROPERTY = "dagster.delta.hostile"
ATTACK = f"java_method('java.lang.System', 'setProperty', '{PROPERTY}', 'owned')"

COLUMNS = [
    Column("a", "BIGINT"),
    Column("g", "STRING", generated_as="concat('g', a)"),
    Column("d", "STRING", default="'d'"),
]
BENIGN = {"check": "a > 0 AND 1 = 1", "generated": "concat('g', a)", "default": "'d'"}


def hostile_table(root: Path, where: str, sql: str) -> DeltaTable:
    """A table as another writer left it, with `sql` in one place of its metadata."""
    table = DeltaTable.create(root / "t", COLUMNS)
    table.append(pa.table({"a": [1]}))
    table.add_constraint("c", BENIGN["check"])
    for commit in (root / "t" / "_delta_log").iterdir():
        text = commit.read_text() if commit.suffix == ".json" else ""
        if "metaData" in text:
            commit.write_text("".join(_spoiled(line, where, sql) for line in text.splitlines()))
        elif commit.suffix == ".crc":
            commit.unlink()
    return DeltaTable(root / "t")


def _spoiled(line: str, where: str, sql: str) -> str:
    action = json.loads(line)
    if metadata := action.get("metaData"):
        if where == "check":
            if "delta.constraints.c" in metadata["configuration"]:
                metadata["configuration"]["delta.constraints.c"] = sql
        else:
            schema = json.loads(metadata["schemaString"])
            key = {"generated": "delta.generationExpression", "default": "CURRENT_DEFAULT"}[where]
            for field in schema["fields"]:
                if key in field["metadata"]:
                    field["metadata"][key] = sql
            metadata["schemaString"] = json.dumps(schema)
    return json.dumps(action) + "\n"


def test_the_table_of_these_tests_can_be_written_while_it_is_benign(tmp_path: Path) -> None:
    table = hostile_table(tmp_path, "check", "a > 0")
    table.append(pa.table({"a": [2]}))
    assert table.snapshot().scan().to_arrow().sort_by("a").to_pylist()[1] == {
        "a": 2,
        "g": "g2",
        "d": "d",
    }


ATTACKS = [
    ("check", f"{ATTACK} IS NULL OR a > 0"),
    ("check", f"a > 0 /* /* */ ' */ OR {ATTACK} IS NULL -- '"),
    ("check", "a > (SELECT count(*) FROM csv.`/etc/passwd`) - 1000"),
    ("generated", ATTACK),
    ("generated", "input_file_name()"),
    ("default", ATTACK),
]


def assert_refused(table: DeltaTable, where: str, write: object) -> None:
    before = table.version()
    with pytest.raises(UnsupportedExpression, match="a table brings along") as caught:
        write()  # type: ignore[operator]
    assert caught.value.table == table.uri
    assert {"check": "CHECK c", "generated": "column g", "default": "column d"}[where] in str(
        caught.value
    )
    assert table.version() == before


@pytest.mark.parametrize(("where", "sql"), ATTACKS)
def test_the_embedded_engine_evaluates_none_of_it(tmp_path: Path, where: str, sql: str) -> None:
    table = hostile_table(tmp_path, where, sql)
    assert_refused(table, where, lambda: table.append(pa.table({"a": [2]})))
    assert table.snapshot().scan().to_arrow()["a"].to_pylist() == [1]
    # What evaluates nothing of it still works, and so does the remedy.
    table.optimize()
    table.delete("a = 5")


@pytest.mark.classic("looks into the JVM")
@pytest.mark.parametrize(("where", "sql"), ATTACKS)
def test_spark_evaluates_none_of_it(
    spark: SparkSession, tmp_path: Path, where: str, sql: str
) -> None:
    system = spark._jvm.java.lang.System  # type: ignore[union-attr]
    system.clearProperty(PROPERTY)
    table = hostile_table(tmp_path, where, sql)
    frame = spark.range(2, 3).selectExpr("id AS a")
    merged = frame.alias("s")
    writes = [
        lambda: table.append(frame),
        lambda: table.overwrite(frame),
        lambda: table.update({"a": "a + 1"}, "a = 1", engine="spark"),
        lambda: table.merge(merged, "t.a = s.a").when_not_matched_insert({"a": "s.a"}).execute(),
    ]
    for write in writes:
        assert_refused(table, where, write)
    assert [row["a"] for row in table.snapshot().scan().to_spark(spark).collect()] == [1]
    assert system.getProperty(PROPERTY) is None


def test_a_hostile_constraint_can_be_dropped(tmp_path: Path) -> None:
    table = hostile_table(tmp_path, "check", f"{ATTACK} IS NULL")
    table.drop_constraint("c")
    table.append(pa.table({"a": [2]}))
    assert table.snapshot().num_records == 2


def test_a_constraint_that_no_writer_would_evaluate_is_not_added(tmp_path: Path) -> None:
    table = DeltaTable.create(tmp_path / "t", [Column("a", "BIGINT")])
    with pytest.raises(UnsupportedExpression, match="java_method"):
        table.add_constraint("c", f"{ATTACK} IS NULL")
    with pytest.raises(UnsupportedExpression, match="input_file_name"):
        table.add_column("b", "STRING", default="input_file_name()")


VARIABLE = "${env:DAGSTER_DELTA_TEST_SECRET}"
PROPERTY_VARIABLE = "${system:user.home}"


@pytest.mark.parametrize("where", ["generated", "default"])
def test_nothing_of_the_environment_gets_into_the_rows(
    spark: SparkSession, tmp_path: Path, where: str
) -> None:
    text = f"{VARIABLE}{PROPERTY_VARIABLE}"
    table = hostile_table(tmp_path, where, f"'{text}'")
    table.append(spark.range(2, 3).selectExpr("id AS a"))
    (row,) = table.snapshot().scan(where="a = 2").to_arrow().to_pylist()
    assert row["g" if where == "generated" else "d"] == text


def test_data_that_look_like_variables_stay_what_they_are(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = DeltaTable(tmp_path / "t", must_exist=False)
    rows = pa.table({"p": [PROPERTY_VARIABLE, "x"], "n": [1, 2]})
    table.append(rows, partition_by=["p"])
    where = f"p = '{PROPERTY_VARIABLE}'"
    found = table.snapshot().scan(where=where).to_spark(spark).collect()
    assert [row["n"] for row in found] == [1]
    table.update({"n": f"length('{PROPERTY_VARIABLE}')"}, where, engine="spark")
    frame = spark.createDataFrame(pa.table({"p": [PROPERTY_VARIABLE], "n": [7]}).to_pandas())
    table.overwrite(frame, where=where)
    table.merge(frame, f"t.p = s.p AND s.p = '{PROPERTY_VARIABLE}'").when_matched_update(
        {"n": "s.n + 1"}
    ).execute()
    found = table.snapshot().scan().to_arrow().sort_by("n").to_pylist()
    assert found == [{"p": "x", "n": 2}, {"p": PROPERTY_VARIABLE, "n": 8}]


def test_a_column_that_is_named_like_a_variable_shows_nothing_of_the_environment(
    spark: SparkSession, tmp_path: Path
) -> None:
    name = PROPERTY_VARIABLE
    table = DeltaTable.create(
        tmp_path / "t",
        [Column(name, "BIGINT", nullable=False)],
        properties={"delta.columnMapping.mode": "name"},
    )
    with pytest.raises(UnsupportedExpression) as caught:
        table.append(spark.range(1).withColumnRenamed("id", name))
    assert str(Path.home()) not in str(caught.value).replace(str(tmp_path), "")
    table.append(pa.table({name: [1]}))
    assert [row[0] for row in table.snapshot().scan().to_spark(spark).collect()] == [1]
