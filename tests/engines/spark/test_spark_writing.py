"""What Spark writes into a table is what the Arrow engine, and delta-spark, read back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyspark
import pytest

from dagster_delta.engines.plans import ReadPlan, WriteSpec
from dagster_delta.engines.spark.engine import SparkEngine
from dagster_delta.engines.spark.session.schema import to_spark_schema
from dagster_delta.errors import (
    ConstraintViolation,
    DeltaError,
    InvalidArgument,
    InvalidCast,
    InvalidTable,
    PartitionMismatch,
    SchemaMismatch,
    StorageFailure,
)
from dagster_delta.protocol.schema import (
    ArrayType,
    DecimalType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
)
from dagster_delta.sql.constraint import Constraint
from dagster_delta.storage import open_store
from dagster_delta.storage.object_store import StoreLocation
from dagster_delta.table.delta_table import DeltaTable
from tests.golden.answers import rows_of
from tests.parquet.data_tables import configuration, live_files, read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVERY_TYPE_SQL = """
    SELECT id, CAST(id AS STRING) AS s, CAST(id AS INT) AS i, CAST(id AS SMALLINT) AS sh,
        CAST(id AS TINYINT) AS b, CAST(id / 3 AS FLOAT) AS f, IF(id = 2, DOUBLE('NaN'), id / 7) AS d,
        id % 2 = 0 AS flag, CAST(CONCAT('x', id) AS BINARY) AS bin,
        DATE_ADD(DATE '1582-10-10', CAST(id AS INT)) AS day,
        TIMESTAMP '0001-01-01 00:00:00 UTC' + MAKE_DT_INTERVAL(CAST(id AS INT) * 300000, 0, 0, 0.000001) AS ts,
        TIMESTAMP_NTZ '2020-03-29 02:30:00.123456' + MAKE_DT_INTERVAL(CAST(id AS INT)) AS ntz,
        CAST(id AS DECIMAL(9, 2)) AS dec9, CAST(id AS DECIMAL(38, 18)) AS dec38,
        NAMED_STRUCT('a', id, 'l', ARRAY(id, NULL), 'n', NAMED_STRUCT('ntz', TIMESTAMP_NTZ '2020-01-01 00:00:00')) AS st,
        MAP(CONCAT('k', id), NAMED_STRUCT('v', id)) AS m,
        ARRAY(NAMED_STRUCT('t', TIMESTAMP '2020-06-01 12:00:00 UTC')) AS l
    FROM RANGE(5)
    UNION ALL SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        NULL, NULL, NULL, NULL
"""

PARTITION_SQL = """
    SELECT id, CASE id % 8 WHEN 0 THEN NULL WHEN 1 THEN '' WHEN 2 THEN 'a/b=c%20 ü✈' WHEN 3 THEN 'x:y?#&'
        WHEN 4 THEN '__HIVE_DEFAULT_PARTITION__x' WHEN 5 THEN ' pad ' ELSE CONCAT('v', id % 8) END AS p,
        DATE_ADD(DATE '2020-01-01', CAST(id % 3 AS INT)) AS d, CAST(id AS DOUBLE) / 2 AS x
    FROM RANGE(0, 200, 1, 4)
"""


def arrow_rows(table: DeltaTable) -> Any:
    return rows_of(table.snapshot().scan().to_arrow())


def relaxed(frame: DataFrame) -> DataFrame:
    """The frame as a table keeps it: nullable at every depth."""
    return frame.to(to_spark_schema(SparkEngine().schema_of(frame)))


def frame_rows(frame: DataFrame) -> Any:
    return rows_of(relaxed(frame).toArrow())


@pytest.mark.parametrize("zone", ["UTC", "America/Los_Angeles"])
def test_every_type_arrives_unchanged(tmp_path: Path, spark: SparkSession, zone: str) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        frame = spark.sql(EVERY_TYPE_SQL)
        table = DeltaTable(str(tmp_path), must_exist=False)
        result = table.append(frame)
        assert result.metrics["numOutputRows"] == 6
        assert arrow_rows(table) == frame_rows(frame)
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))


def test_delta_spark_reads_every_type(tmp_path: Path, delta_spark: SparkSession) -> None:
    frame = delta_spark.sql(EVERY_TYPE_SQL)
    DeltaTable(str(tmp_path), must_exist=False).append(frame)
    judged = delta_spark.read.format("delta").load(str(tmp_path))
    assert judged.schema.simpleString() == frame.schema.simpleString()
    assert frame_rows(judged) == frame_rows(frame)


def test_delta_spark_reads_and_continues_partitions_of_any_name(
    tmp_path: Path, delta_spark: SparkSession
) -> None:
    frame = delta_spark.sql(PARTITION_SQL)
    table = DeltaTable(str(tmp_path), must_exist=False)
    table.append(frame, partition_by=["p", "d"])
    judged = delta_spark.read.format("delta").load(str(tmp_path))
    assert frame_rows(judged) == arrow_rows(table)
    assert judged.where("p = 'x:y?#&'").count() == 25
    frame.write.format("delta").mode("append").save(str(tmp_path))
    assert DeltaTable(str(tmp_path)).snapshot().scan().count() == 400
    assert arrow_rows(DeltaTable(str(tmp_path))) == frame_rows(
        delta_spark.read.format("delta").load(str(tmp_path))
    )


@pytest.mark.skipif(
    pyspark.__version__.startswith("4.0."), reason="Spark 4.0 reads no annotated variants"
)
def test_variants_arrive_unchanged(tmp_path: Path, spark: SparkSession) -> None:
    frame = spark.sql("""SELECT id, PARSE_JSON(CONCAT('{"a": [', id, ', null]}')) AS v FROM RANGE(3)
        UNION ALL SELECT 9, NULL""")
    store = open_store(str(tmp_path))
    config = configuration(SparkEngine().schema_of(frame))
    assert str(config.schema.field("v").data_type) == "variant"
    spec = WriteSpec(location=store.location, configuration=config)
    files = SparkEngine().write(frame, spec, store=store).files
    plan = ReadPlan(store, 0, config, live_files(files), ("id", "v"))
    found = SparkEngine(spark).read(plan).selectExpr("id", "TO_JSON(v) AS v")
    assert frame_rows(found) == frame_rows(frame.selectExpr("id", "TO_JSON(v) AS v"))


# -- errors ---------------------------------------------------------------------------------------

SMALL = StructType(
    (
        StructField("i", PrimitiveType("integer")),
        StructField("s", PrimitiveType("string"), nullable=False),
    )
)


POSITIVE = Constraint("CHECK positive", "i > 0")
NARROW = Constraint("replaceWhere", "s = 'x'", is_partition=True)


@pytest.mark.parametrize(
    ("constraint", "kind", "broken"),
    [
        (POSITIVE, ConstraintViolation, "{'i': -1, 's': 'x'}"),
        (NARROW, PartitionMismatch, "{'i': 1, 's': 'y'}"),
        (Constraint("CHECK null", "IF(i = 1, CAST(NULL AS BOOLEAN), true)"), ConstraintViolation, "'i': 1"),
    ],
)  # fmt: skip
def test_a_row_that_breaks_a_constraint_is_shown(
    tmp_path: Path, spark: SparkSession, constraint: Constraint, kind: Any, broken: str
) -> None:
    store = open_store(str(tmp_path))
    spec = WriteSpec(
        location=store.location, configuration=configuration(SMALL), constraints=(constraint,)
    )
    # The first file is finished in another task than the one that meets the row.
    frame = spark.sql("SELECT 5 AS i, 'x' AS s UNION ALL SELECT * FROM VALUES (-1, 'x'), (1, 'y')")
    with pytest.raises(kind) as caught:
        SparkEngine().write(frame, spec, store=store)
    assert constraint.name in caught.value.message
    assert any(broken in each for each in caught.value.examples)
    assert not list(tmp_path.glob("**/*.parquet"))


def test_rows_that_satisfy_their_constraints_are_written(
    tmp_path: Path, spark: SparkSession
) -> None:
    store = open_store(str(tmp_path))
    config = configuration(SMALL)
    unknown = Constraint("CHECK unknown", "CAST(NULL AS BOOLEAN)", null_passes=True)
    spec = WriteSpec(
        location=store.location, configuration=config, constraints=(POSITIVE, NARROW, unknown)
    )
    # The constraint speaks of the integer that will be stored.
    frame = spark.sql("SELECT 'x' AS S, id + 1 AS i FROM RANGE(100000)")
    result = SparkEngine().write(frame, spec, store=store)
    assert result.num_rows == 100_000
    assert read(store, result.files, config, ["i"])["i"].to_pylist()[-1] == 100_000


def test_a_value_that_does_not_fit_is_called_that_although_it_has_constraints(
    tmp_path: Path, spark: SparkSession
) -> None:
    store = open_store(str(tmp_path))
    spec = WriteSpec(
        location=store.location, configuration=configuration(SMALL), constraints=(POSITIVE,)
    )
    with pytest.raises(InvalidCast, match="do not fit"):
        SparkEngine().write(spark.sql("SELECT 30000000000 AS i, 'x' AS s"), spec, store=store)


def test_an_error_of_the_store_keeps_its_class(tmp_path: Path, spark: SparkSession) -> None:
    (tmp_path / "file").write_text("in the way")
    store = open_store(str(tmp_path))
    location = StoreLocation(f"{tmp_path}/file/below", {})
    spec = WriteSpec(location=location, configuration=configuration(SMALL))
    with pytest.raises(StorageFailure, match="executor"):
        SparkEngine().write(spark.sql("SELECT 1 AS i, 'x' AS s"), spec, store=store)


def test_workers_without_the_package_are_told_apart() -> None:
    from dagster_delta.engines.spark.session.errors import executor_failure

    text = "PythonException: …\nModuleNotFoundError: No module named 'dagster_delta'\n"
    failure = executor_failure(RuntimeError(text), table="t")
    assert isinstance(failure, InvalidArgument)
    assert "ship_package" in failure.message
    text = text.replace("dagster_delta", "pyarrow")
    assert "cannot import pyarrow" in str(executor_failure(RuntimeError(text), table="t"))
    assert executor_failure(RuntimeError("No module named 'their_code'"), table="t") is None


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        ("org.apache.hadoop.fs.s3a.AWSServiceIOException: getFileStatus: 503", StorageFailure),
        ("java.net.SocketTimeoutException: Read timed out", StorageFailure),
        ("java.io.IOException: Input/output error", StorageFailure),
        (
            "software.amazon.awssdk.services.s3.model.S3Exception: (Service: S3, Status Code: 403)",
            StorageFailure,
        ),
        ('Operation failed: "Service Unavailable", 503, HEAD, https://host/b/t', StorageFailure),
        ("java.lang.RuntimeException: file.parquet is not a Parquet file", InvalidTable),
    ],
)
def test_an_outage_while_spark_reads_a_data_file_is_no_damage(
    cause: str, kind: type[DeltaError]
) -> None:
    from pyspark.errors.exceptions.connect import SparkException

    from dagster_delta.engines.spark.session.errors import executor_failure

    text = (
        "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file s3a://b/t/a.parquet. "
        f"SQLSTATE: KD001\n\tat org.apache.spark.Reader\nCaused by: {cause}\n\tat java.Thread"
    )
    message, _, trace = text.partition("\n")
    over_connect = SparkException(message, server_stacktrace=f"org.SparkException\n{trace}")
    for error in (RuntimeError(text), over_connect):
        failure = executor_failure(error, table="t")
        assert type(failure) is kind
        assert failure.file == "s3a://b/t/a.parquet"


def test_a_table_in_memory_is_out_of_reach(spark: SparkSession) -> None:
    with pytest.raises(InvalidArgument, match="cannot access a table in the memory"):
        DeltaTable("memory://spark-writing", must_exist=False).append(spark.range(3))


# -- how often, how many --------------------------------------------------------------------------


def test_the_rows_are_computed_once(tmp_path: Path, spark: SparkSession) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()

    def mark(batches: Any) -> Any:
        import tempfile

        tempfile.mkstemp(dir=marks)
        yield from batches

    frame = spark.range(0, 100, 1, 3).mapInArrow(mark, "id long")
    table = DeltaTable(str(tmp_path / "table"), must_exist=False)
    table.append(frame)
    assert len(list(marks.iterdir())) == 3
    assert table.snapshot().num_records == 100


def test_a_table_can_decline_the_shuffle(tmp_path: Path, spark: SparkSession) -> None:
    frame = spark.range(0, 40, 1, 4).selectExpr("id", "id % 2 AS p")
    store = open_store(str(tmp_path))
    config = configuration(
        SparkEngine().schema_of(frame), ["p"], {"delta.autoOptimize.optimizeWrite": "false"}
    )
    spec = WriteSpec(location=store.location, configuration=config)
    assert len(SparkEngine().write(frame, spec, store=store).files) == 4 * 2


def test_files_close_at_their_target_size(tmp_path: Path, spark: SparkSession) -> None:
    store = open_store(str(tmp_path))
    frame = spark.range(0, 300_000, 1, 1).selectExpr("id", "uuid() AS s")
    config = configuration(SparkEngine().schema_of(frame))
    spec = WriteSpec(
        location=store.location,
        configuration=config,
        target_file_size_bytes=1024 * 1024,
        row_group_rows=50_000,
    )
    files = SparkEngine().write(frame, spec, store=store).files
    assert len(files) > 1
    assert sum(msgspec.json.decode(each.stats or "{}")["numRecords"] for each in files) == 300_000


# -- schemas --------------------------------------------------------------------------------------


def test_the_schema_of_a_frame_is_nullable_and_keeps_comments(spark: SparkSession) -> None:
    from pyspark.sql import functions

    frame = spark.range(1).select(
        functions.col("id").alias(
            "id",
            metadata={"comment": "who", "delta.columnMapping.id": 7, "__internal": 1, "own": 2},
        ),
        functions.expr("ARRAY(NAMED_STRUCT('a', MAP('k', 1.50BD))) AS l"),
    )
    struct = StructType((StructField("a", MapType(PrimitiveType("string"), DecimalType(3, 2))),))
    assert SparkEngine().schema_of(frame) == StructType(
        (
            StructField("id", PrimitiveType("long"), True, {"comment": "who", "own": 2}),
            StructField("l", ArrayType(struct)),
        )
    )


@pytest.mark.parametrize(
    ("sql", "column"),
    [
        ("SELECT NAMED_STRUCT('x', INTERVAL '1' DAY) AS s", "s.x"),
        ("SELECT ARRAY(INTERVAL '1' MONTH) AS a", "a.element"),
        ("SELECT 1 AS a, 2 AS A", "A"),
        ("SELECT 'x' COLLATE UNICODE AS c", "c"),
    ],
)
def test_types_and_names_that_a_table_cannot_have_are_refused(
    spark: SparkSession, sql: str, column: str
) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        SparkEngine().schema_of(spark.sql(sql))
    assert caught.value.column == column


def test_the_length_of_a_varchar_is_kept(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE with_varchar (v VARCHAR(3), c CHAR(2)) USING parquet")
    try:
        schema = SparkEngine().schema_of(spark.table("with_varchar"))
    finally:
        spark.sql("DROP TABLE with_varchar")
    assert {each.name: str(each.data_type) for each in schema} == {"v": "string", "c": "string"}
    assert schema.field("v").metadata == {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}
