"""Commits as bytes: what stands on which line, and that it reads back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.actions import (
    AddFile,
    DeletionVectorDescriptor,
    DomainMetadata,
    Format,
    Metadata,
    Protocol,
    RemoveFile,
    SetTransaction,
)
from dagster_delta.protocol.log.commit_file import CommitContents
from dagster_delta.protocol.log.commit_writer import (
    CommitInfo,
    encode_actions,
    encode_commit,
    spell_metrics,
    spell_parameters,
)

TEXT = st.text(max_size=20)
VALUES = st.dictionaries(TEXT, st.none() | TEXT, max_size=3)
VECTORS = st.builds(
    DeletionVectorDescriptor,
    storage_type=st.sampled_from("uip"),
    path_or_inline_dv=TEXT,
    offset=st.none() | st.integers(0, 2**31 - 1),
    size_in_bytes=st.integers(0, 2**31 - 1),
    cardinality=st.integers(0, 2**40),
)
ADDS = st.builds(
    AddFile,
    path=TEXT,
    partition_values=VALUES,
    size_bytes=st.integers(0, 2**62),
    modification_time_ms=st.integers(0, 2**45),
    data_change=st.booleans(),
    stats=st.none() | TEXT,
    tags=st.none() | VALUES,
    deletion_vector=st.none() | VECTORS,
)
REMOVES = st.builds(
    RemoveFile,
    path=TEXT,
    deletion_timestamp_ms=st.none() | st.integers(0, 2**45),
    data_change=st.booleans(),
    extended_file_metadata=st.none() | st.booleans(),
    partition_values=st.none() | VALUES,
    size_bytes=st.none() | st.integers(0, 2**62),
    deletion_vector=st.none() | VECTORS,
)


def info(user_info: Mapping[str, object] | None = None, **changes: Any) -> dict[str, object]:
    arguments: dict[str, Any] = {
        "timestamp_ms": 1000,
        "in_commit_timestamp_ms": None,
        "operation": "WRITE",
        "operation_parameters": spell_parameters({"mode": "Append", "partitionBy": ["p"]}),
        "operation_metrics": spell_metrics({"numFiles": 1}),
        "engine_info": "engine/1",
        "transaction_id": "id",
        "is_blind_append": True,
        "isolation_level": "WriteSerializable",
        "read_version": 3,
    }
    return CommitInfo(**{**arguments, **changes}).with_user_info(user_info or {})


def lines(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.splitlines()]


def test_commit_info_is_the_first_line_and_spelled_as_spark_does() -> None:
    commit = encode_commit(info(), encode_actions(CommitContents()))
    assert commit.endswith(b"\n")
    (line,) = lines(commit)
    assert isinstance(line["commitInfo"].pop("contentCrc32"), int)
    assert [line] == [
        {
            "commitInfo": {
                "timestamp": 1000,
                "operation": "WRITE",
                "operationParameters": {"mode": "Append", "partitionBy": '["p"]'},
                "readVersion": 3,
                "isolationLevel": "WriteSerializable",
                "isBlindAppend": True,
                "operationMetrics": {"numFiles": "1"},
                "engineInfo": "engine/1",
                "txnId": "id",
            }
        }
    ]


def test_the_in_commit_timestamp_stands_in_commit_info() -> None:
    assert info(in_commit_timestamp_ms=7)["inCommitTimestamp"] == 7
    assert "inCommitTimestamp" not in info()


def test_the_first_commit_has_no_read_version() -> None:
    assert "readVersion" not in info(read_version=None)


def test_user_info_is_kept_beside_ours() -> None:
    assert info(user_info={"dagster_run_id": "r"})["dagster_run_id"] == "r"


@pytest.mark.parametrize("key", ["timestamp", "txnId", "operation", "inCommitTimestamp", "job"])
def test_user_info_cannot_take_a_key_that_readers_know(key: str) -> None:
    with pytest.raises(InvalidArgument, match=key):
        info(user_info={key: "x"})


def test_user_info_that_is_no_json_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="not valid JSON"):
        info(user_info={"x": object()})


def test_parameters_are_text() -> None:
    assert spell_parameters({"a": "text", "b": ["x"], "c": True, "d": None, "e": 3}) == {
        "a": "text",
        "b": '["x"]',
        "c": "true",
        "d": None,
        "e": "3",
    }


def test_every_kind_of_action_has_its_line() -> None:
    contents = CommitContents(
        protocol=Protocol(min_reader_version=1, min_writer_version=2),
        metadata=Metadata(
            id="t", format=Format(), schema_string="{}", partition_columns=("p",), configuration={}
        ),
        txns=(SetTransaction(app_id="app", version=1, last_updated_ms=5),),
        domain_metadata=(DomainMetadata(domain="d", configuration="{}", removed=False),),
        removes=(RemoveFile(path="r", data_change=True),),
        adds=(
            AddFile(
                path="a",
                partition_values={"p": None},
                size_bytes=1,
                modification_time_ms=2,
                data_change=True,
            ),
        ),
    )
    assert lines(encode_actions(contents)) == [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": "t",
                "name": None,
                "description": None,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": "{}",
                "partitionColumns": ["p"],
                "createdTime": None,
                "configuration": {},
            }
        },
        {"txn": {"appId": "app", "version": 1, "lastUpdated": 5}},
        {"domainMetadata": {"domain": "d", "configuration": "{}", "removed": False}},
        {"remove": {"path": "r", "dataChange": True}},
        {
            "add": {
                "path": "a",
                "partitionValues": {"p": None},
                "size": 1,
                "modificationTime": 2,
                "dataChange": True,
            }
        },
    ]


@given(st.lists(ADDS, max_size=3), st.lists(REMOVES, max_size=3))
def test_file_actions_read_back(adds: list[AddFile], removes: list[RemoveFile]) -> None:
    import msgspec

    data = encode_actions(CommitContents(adds=tuple(adds), removes=tuple(removes)))
    parsed = [msgspec.json.decode(line) for line in data.split(b"\n")[:-1]]
    assert [msgspec.convert(a["add"], AddFile) for a in parsed if "add" in a] == adds
    assert [msgspec.convert(a["remove"], RemoveFile) for a in parsed if "remove" in a] == removes


def test_only_data_changes_count_as_removed_data() -> None:
    moved = RemoveFile(path="r", data_change=False)
    assert not CommitContents(removes=(moved,)).removes_data
    assert CommitContents(removes=(moved, RemoveFile(path="s", data_change=True))).removes_data
