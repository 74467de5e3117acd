"""Decoding of commits. Spec: Delta Log Entries; Actions."""

from __future__ import annotations

import gc
import json

import pytest

from dagster_delta.errors import CorruptLog
from dagster_delta.protocol.actions import Format, Protocol, SetTransaction
from dagster_delta.protocol.log.commit_file import (
    decode_commit,
    decode_commit_info,
    garbage_collection_paused,
)
from dagster_delta.protocol.log.paths import commit_path
from tests.table.logs import PROTOCOL, add_file, encode, metadata, remove_file


def test_every_kind_of_action_is_decoded() -> None:
    data = encode(
        {"commitInfo": {"operation": "WRITE", "anything": [1, {"x": None}]}},
        PROTOCOL,
        metadata(),
        add_file("a", stats='{"numRecords":1}'),
        remove_file("b", deletionTimestamp=5),
        {"cdc": {"path": "c", "partitionValues": {}, "size": 3, "dataChange": False}},
        {"txn": {"appId": "app", "version": 7, "lastUpdated": 9}},
        {"domainMetadata": {"domain": "d", "configuration": "{}", "removed": False}},
        {"somethingNew": {"x": 1}},
    )
    actions = decode_commit(data, version=4)
    assert actions.version == 4
    assert actions.commit_info == {"operation": "WRITE", "anything": [1, {"x": None}]}
    assert actions.protocol == Protocol(min_reader_version=1, min_writer_version=2)
    assert actions.metadata is not None
    assert actions.metadata.id == "table-id"
    assert [add.path for add in actions.adds] == ["a"]
    assert [remove.deletion_timestamp_ms for remove in actions.removes] == [5]
    assert [file.size_bytes for file in actions.cdc] == [3]
    assert actions.txns == (SetTransaction(app_id="app", version=7, last_updated_ms=9),)
    assert actions.domain_metadata[0].configuration == "{}"


def test_blank_lines_and_windows_line_ends_are_accepted() -> None:
    data = b"\n" + encode(add_file("a")).replace(b"\n", b"\r\n") + b"\n  \n" + encode(add_file("b"))
    assert [add.path for add in decode_commit(data, version=0).adds] == ["a", "b"]


@pytest.mark.parametrize("data", [b"", b"\n", b" \r\n\n"])
def test_a_commit_without_any_action_is_refused_as_cut(data: bytes) -> None:
    with pytest.raises(CorruptLog, match="empty") as caught:
        decode_commit(data, version=7)
    assert caught.value.version == 7
    assert caught.value.file == "_delta_log/00000000000000000007.json"


@pytest.mark.parametrize("cut", [1, 10, 40])
def test_a_cut_commit_is_refused_by_file_and_line(cut: int) -> None:
    data = encode(add_file("a"), add_file("b"))[: -1 - cut]
    with pytest.raises(CorruptLog, match="Line 2 ") as raised:
        decode_commit(data, version=3)
    assert raised.value.file == commit_path(3)
    assert raised.value.version == 3


@pytest.mark.parametrize(
    "line",
    [b"nonsense", b"[]", b"null", b'{"add":{}}', b'{"add":{"path":1}}', b"\xff", b'{"add":"\xff"}'],
)
def test_a_malformed_line_is_refused_by_number(line: bytes) -> None:
    with pytest.raises(CorruptLog, match="Line 3 "):
        decode_commit(encode(add_file("a")) + b"\n" + line + b"\n", version=0)


@pytest.mark.parametrize("action", [PROTOCOL, metadata()])
def test_protocol_and_metadata_may_stand_once(action: dict[str, object]) -> None:
    with pytest.raises(CorruptLog, match=r"2 (protocol|metaData) actions"):
        decode_commit(encode(action, action), version=0)


def test_missing_parts_of_metadata_read_as_the_reference_implementation_reads_them() -> None:
    data = encode({"metaData": {"id": "x", "configuration": {"a": None, "b": "c"}}})
    found = decode_commit(data, version=0).metadata
    assert found is not None
    assert json.loads(found.schema_string) == {"type": "struct", "fields": []}
    assert found.format == Format()
    assert found.partition_columns == ()
    assert found.configuration == {"b": "c"}


def test_domain_metadata_of_the_draft_is_read_as_text() -> None:
    data = encode({"domainMetadata": {"domain": "d", "configuration": {"a": "b"}}})
    domain = decode_commit(data, version=0).domain_metadata[0]
    assert json.loads(domain.configuration) == {"a": "b"}
    assert domain.removed is False


def test_provenance_is_found_wherever_it_stands() -> None:
    data = encode(add_file("a"), {"commitInfo": {"operation": "X"}})
    assert decode_commit_info(data, version=0, path="p") == {"operation": "X"}
    assert decode_commit_info(encode(add_file("a")), version=0, path="p") == {}


def test_garbage_collection_is_left_as_it_was_found() -> None:
    assert gc.isenabled()
    with garbage_collection_paused():
        assert not gc.isenabled()
        with garbage_collection_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
