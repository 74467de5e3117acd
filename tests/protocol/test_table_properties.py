from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_delta.errors import InvalidArgument, InvalidTable
from dagster_delta.protocol.table_properties import (
    TableProperties,
    parse_column_paths,
    parse_interval_ms,
)

DAY_MS = 86_400_000


def test_defaults_are_those_of_the_protocol() -> None:
    properties = TableProperties.parse({})
    assert not properties.append_only
    assert properties.checkpoint_interval is None
    assert properties.checkpoint_policy == "classic"
    assert properties.write_stats_as_json
    assert properties.write_stats_as_struct is None
    assert properties.data_skipping_num_indexed_cols == 32
    assert properties.data_skipping_stats_columns is None
    assert properties.log_retention_ms == 30 * DAY_MS
    assert properties.deleted_file_retention_ms == 7 * DAY_MS
    assert properties.set_transaction_retention_ms is None
    assert properties.column_mapping_mode == "none"
    assert properties.column_mapping_max_column_id == 0
    assert properties.isolation_level == "Serializable"
    assert properties.target_file_size_bytes is None
    assert properties.in_commit_timestamp_enablement_version is None
    assert properties.parquet_compression_codec is None
    assert properties.constraints == {}


def test_values_of_the_table_win() -> None:
    properties = TableProperties.parse(
        {
            "delta.appendOnly": "TRUE",
            "delta.checkpointInterval": "3",
            "delta.checkpoint.writeStatsAsStruct": "false",
            "delta.dataSkippingNumIndexedCols": "-1",
            "delta.dataSkippingStatsColumns": "a,b.`c.d`",
            "delta.deletedFileRetentionDuration": "interval 2 weeks",
            "delta.columnMapping.mode": "id",
            "delta.columnMapping.maxColumnId": "12",
            "delta.targetFileSize": "128mb",
            "delta.inCommitTimestampEnablementVersion": "4",
            "delta.inCommitTimestampEnablementTimestamp": "1700000000000",
            "delta.parquet.compression.codec": "ZSTD",
            "delta.constraints.positive": "x > 0",
            "delta.constraints.Other Name": "y IS NOT NULL",
            "owner": "somebody",
        }
    )
    assert properties.append_only
    assert properties.checkpoint_interval == 3
    assert properties.write_stats_as_struct is False
    assert properties.data_skipping_num_indexed_cols == -1
    assert properties.data_skipping_stats_columns == (("a",), ("b", "c.d"))
    assert properties.deleted_file_retention_ms == 14 * DAY_MS
    assert properties.column_mapping_mode == "id"
    assert properties.column_mapping_max_column_id == 12
    assert properties.target_file_size_bytes == 128 * 2**20
    assert properties.in_commit_timestamp_enablement_version == 4
    assert properties.parquet_compression_codec == "zstd"
    assert properties.constraints == {"positive": "x > 0", "Other Name": "y IS NOT NULL"}
    properties.validate()


@pytest.mark.parametrize(
    ("key", "text", "attribute"),
    [
        ("delta.appendOnly", "yes", "append_only"),
        ("delta.checkpointInterval", "0", "checkpoint_interval"),
        ("delta.checkpointInterval", "ten", "checkpoint_interval"),
        ("delta.dataSkippingNumIndexedCols", "-2", "data_skipping_num_indexed_cols"),
        ("delta.dataSkippingStatsColumns", "a,,b", "data_skipping_stats_columns"),
        ("delta.logRetentionDuration", "interval 2 months", "log_retention_ms"),
        ("delta.columnMapping.mode", "names", "column_mapping_mode"),
        ("delta.targetFileSize", "big", "target_file_size_bytes"),
        ("delta.targetFileSize", "0", "target_file_size_bytes"),
        ("delta.isolationLevel", "Chaos", "isolation_level"),
    ],
)
def test_value_without_meaning_is_refused_by_its_key(key: str, text: str, attribute: str) -> None:
    properties = TableProperties.parse({key: text})
    with pytest.raises(InvalidTable, match=key):
        getattr(properties, attribute)
    with pytest.raises(InvalidArgument, match=key):
        properties.validate()


def test_broken_property_harms_nobody_who_does_not_ask_for_it() -> None:
    properties = TableProperties.parse({"delta.targetFileSize": "big"})
    assert properties.checkpoint_interval is None


@pytest.mark.parametrize(
    ("num_files", "interval"),
    [(0, 10), (5_000, 10), (5_001, 20), (10_000, 20), (25_000, 50), (25_001, 100), (10**9, 100)],
)
def test_commits_between_checkpoints_suit_the_size_of_the_table(
    num_files: int, interval: int
) -> None:
    assert TableProperties.parse({}).commits_between_checkpoints(num_files) == interval
    # However the size varies, a checkpoint follows after 100 commits.
    assert 100 % interval == 0
    own = TableProperties.parse({"delta.checkpointInterval": "7"})
    assert own.commits_between_checkpoints(num_files) == 7


def test_properties_travel_to_executors() -> None:
    properties = TableProperties.parse({"delta.checkpointInterval": "3"})
    assert pickle.loads(pickle.dumps(properties)) == properties


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("interval 30 days", 30 * DAY_MS),
        ("INTERVAL 1 DAY", DAY_MS),
        ("1 week", 7 * DAY_MS),
        ("interval 2 hours 30 minutes", 9_000_000),
        ("interval '7' day", 7 * DAY_MS),
        ("interval 1.5 seconds 20 milliseconds", 1520),
        ("interval 2500 microseconds", 2),
        ("interval 0 hours", 0),
        ("interval 1 day -1 hour", DAY_MS - 3_600_000),
    ],
)
def test_interval_has_its_length(text: str, milliseconds: int) -> None:
    assert parse_interval_ms(text) == milliseconds


@pytest.mark.parametrize(
    "text", ["", "interval", "30", "interval 1 month", "interval 1 year", "days 3", "3 daylight"]
)
def test_interval_without_a_fixed_length_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="interval"):
        parse_interval_ms(text)


@given(
    st.lists(
        st.lists(st.text(min_size=1), min_size=1, max_size=3).map(tuple), min_size=1, max_size=4
    )
)
def test_quoted_column_paths_are_read_back(paths: list[tuple[str, ...]]) -> None:
    quoted = [".".join(f"`{part.replace('`', '``')}`" for part in path) for path in paths]
    assert parse_column_paths(", ".join(quoted)) == tuple(paths)


def test_empty_list_of_columns_names_none() -> None:
    assert parse_column_paths("  ") == ()


def test_an_interval_beyond_all_time_is_the_longest_one() -> None:
    assert parse_interval_ms("interval 99999999999999999999 days") == 2**53
