"""Directories are trusted exactly where they spell what the log says."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dagster_delta.engines.spark.read.partition_values import are_in_directories
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA
from dagster_delta.protocol.schema import DecimalType, PrimitiveType, StructField, StructType
from tests.parquet.data_tables import configuration


def is_trusted(directory: str, text: str | None, type_name: str = "string") -> bool:
    data_type = DecimalType(5, 2) if type_name == "decimal" else PrimitiveType(type_name)
    config = configuration(StructType((StructField("p", data_type),)), ["p"])
    files = pa.Table.from_pylist(
        [{"path": "x", "partition_values": [("p", text)]}], LIVE_FILE_SCHEMA
    )
    return are_in_directories(files, [f"file:/t/{directory}/x"], "file:/t", config)


@pytest.mark.parametrize(
    ("directory", "text", "type_name"),
    [
        ("p=a", "a", "string"),
        ("p=a b=c", "a b=c", "string"),
        ("p=a%2Fb%25", "a/b%", "string"),
        ("p=ü✈", "ü✈", "string"),
        ("p=__HIVE_DEFAULT_PARTITION__", None, "string"),
        ("p=__HIVE_DEFAULT_PARTITION__", "", "integer"),
        ("p=-7", "-7", "byte"),
        ("p=true", "true", "boolean"),
        ("p=-3.50", "-3.50", "decimal"),
        ("p=2020-01-01", "2020-01-01", "date"),
        ("p=2020-01-01 01%3A02%3A03.5", "2020-01-01 01:02:03.5", "timestamp"),
        ("p=2020-01-01T01%3A02%3A03.5Z", "2020-01-01T01:02:03.5Z", "timestamp"),
        ("p=2020-01-01 01%3A02%3A03", "2020-01-01 01:02:03", "timestamp_ntz"),
    ],
)
def test_the_same_value_is_trusted(directory: str, text: str | None, type_name: str) -> None:
    assert is_trusted(directory, text, type_name)


@pytest.mark.parametrize(
    ("directory", "text", "type_name"),
    [
        ("p=b", "a", "string"),
        ("P=a", "a", "string"),
        ("q/p=a", "a", "string"),
        ("p=a/more", "a", "string"),
        ("p=", "", "string"),
        ("p=", None, "string"),
        ("p=a", None, "string"),
        ("p=__HIVE_DEFAULT_PARTITION__", "__HIVE_DEFAULT_PARTITION__", "string"),
        ("p=%C3%BC", "ü", "string"),
        ("p=a\nb", "a\nb", "string"),
        ("p=007", "007", "integer"),
        ("p= 7", " 7", "integer"),
        ("p=True", "True", "boolean"),
        ("p=20200-01-01", "20200-01-01", "date"),
        ("p=2020-01-01T01%3A02%3A03+01", "2020-01-01T01:02:03+01", "timestamp"),
        ("p=2020-01-01T01%3A02%3A03Z", "2020-01-01T01:02:03Z", "timestamp_ntz"),
        ("p=1E+2", "1E+2", "decimal"),
        ("p=1.5", "1.5", "double"),
        ("p=a", "a", "binary"),
    ],
)
def test_anything_else_is_left_to_the_log(directory: str, text: str | None, type_name: str) -> None:
    assert not is_trusted(directory, text, type_name)


def test_files_of_other_tables_are_left_to_the_log() -> None:
    config = configuration(StructType((StructField("p", PrimitiveType("string")),)), ["p"])
    files = pa.Table.from_pylist(
        [{"path": "x", "partition_values": [("p", "a")]}] * 2, LIVE_FILE_SCHEMA
    )
    paths = ["file:/t/p=a/x", "file:/elsewhere/p=a/x"]
    assert not are_in_directories(files, paths, "file:/t", config)
    assert are_in_directories(files, ["file:/t/p=a/x", "file:/t/p=a/y"], "file:/t", config)


def test_a_table_that_spark_takes_for_temporary_files_is_left_to_the_log() -> None:
    config = configuration(StructType((StructField("p", PrimitiveType("string")),)), ["p"])
    files = pa.Table.from_pylist(
        [{"path": "x", "partition_values": [("p", "a")]}], LIVE_FILE_SCHEMA
    )
    for root, expected in (("file:/t/_Temporary", False), ("file:/_temporary/t", True)):
        assert are_in_directories(files, [f"{root}/p=a/x"], root, config) is expected
