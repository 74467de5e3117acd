"""The version checksum. Spec: the Version Checksum File of the shipped protocol."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dagster_delta.protocol.actions import (
    AddFile,
    DeletionVectorDescriptor,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    SetTransaction,
)
from dagster_delta.protocol.log.commit_file import CHECKSUM_KEY, CommitActions, decode_commit
from dagster_delta.protocol.log.version_checksum import (
    VersionChecksum,
    encode_version_checksum,
    first_version_checksum,
    next_version_checksum,
    parse_version_checksum,
)
from tests.table.logs import PROTOCOL, encode, metadata


def _first() -> CommitActions:
    return decode_commit(encode(PROTOCOL, metadata()), version=0)


def _protocol() -> Protocol:
    return Protocol(min_reader_version=1, min_writer_version=2)


def _metadata() -> Metadata:
    found = _first().metadata
    assert found is not None
    return found


EMPTY = VersionChecksum(
    protocol=_protocol(),
    metadata=_metadata(),
    num_files=0,
    size_bytes=0,
    transactions=(),
    domain_metadata=(),
    num_deleted_records=0,
    num_deletion_vectors=0,
)


def _add(
    path: str, size: int = 10, *, data_change: bool = True, rows: int | None = None
) -> AddFile:
    return AddFile(
        path=path,
        partition_values={},
        size_bytes=size,
        modification_time_ms=1,
        data_change=data_change,
        deletion_vector=_vector(rows),
    )


def _remove(path: str, size: int | None = 10, *, rows: int | None = None) -> RemoveFile:
    return RemoveFile(path=path, data_change=True, size_bytes=size, deletion_vector=_vector(rows))


def _vector(rows: int | None) -> DeletionVectorDescriptor | None:
    if rows is None:
        return None
    return DeletionVectorDescriptor(
        storage_type="u", path_or_inline_dv="x", size_in_bytes=1, cardinality=rows
    )


COUNTS = st.integers(0, 2**62)

CHECKSUMS = st.builds(
    VersionChecksum,
    protocol=st.just(_protocol()),
    metadata=st.just(_metadata()),
    num_files=COUNTS,
    size_bytes=COUNTS,
    transactions=st.none()
    | st.lists(st.builds(SetTransaction, app_id=st.text(), version=COUNTS)).map(tuple),
    domain_metadata=st.none()
    | st.lists(
        st.builds(DomainMetadata, domain=st.text(), configuration=st.text(), removed=st.just(False))
    ).map(tuple),
    in_commit_timestamp_ms=st.none() | COUNTS,
    transaction_id=st.none() | st.text(),
    num_deleted_records=st.none() | COUNTS,
    num_deletion_vectors=st.none() | COUNTS,
)


@given(CHECKSUMS)
def test_what_is_written_is_read_back(checksum: VersionChecksum) -> None:
    assert parse_version_checksum(encode_version_checksum(checksum)) == checksum


@given(st.binary(max_size=50))
def test_damage_reads_as_absence(data: bytes) -> None:
    assert parse_version_checksum(data) is None


@pytest.mark.parametrize(
    "change",
    [
        {"numFiles": -1},
        {"tableSizeBytes": -1},
        {"numMetadata": 0},
        {"numProtocol": 2},
        {"metadata": None},
        {"protocol": None},
        {"numFiles": "1"},
        {"protocol": {"minReaderVersion": 1}},
    ],
)
def test_a_checksum_that_leaves_out_what_it_must_hold_is_not_believed(
    change: dict[str, object],
) -> None:
    value = json.loads(encode_version_checksum(EMPTY))
    assert parse_version_checksum(json.dumps(value).encode()) is not None
    assert parse_version_checksum(json.dumps(value | change).encode()) is None


def test_checksums_of_real_tables_parse_where_they_are_whole(golden_tables: Path) -> None:
    files = sorted(golden_tables.glob("*/table/_delta_log/[0-9]*.crc"))
    parsed = 0
    for file in files:
        data = file.read_bytes()
        # Older writers recorded nothing but the counts.
        is_whole = b'"metadata":' in data and b'"protocol":' in data
        assert (parse_version_checksum(data) is not None) == is_whole, file
        parsed += is_whole
    assert parsed > 50


def test_the_shipped_names_are_written() -> None:
    value = msgspec.json.decode(encode_version_checksum(replace(EMPTY, num_files=3)))
    assert value["numFiles"] == 3
    assert value["tableSizeBytes"] == 0
    assert value["numMetadata"] == value["numProtocol"] == 1
    assert value["metadata"]["schemaString"]
    assert value["protocol"] == {"minReaderVersion": 1, "minWriterVersion": 2}
    assert "inCommitTimestampOpt" not in value


def test_the_first_commit_starts_the_count() -> None:
    actions = replace(_first(), adds=(_add("a", 5), _add("b", 6)))
    checksum = first_version_checksum(actions)
    assert checksum == replace(EMPTY, num_files=2, size_bytes=11)
    assert first_version_checksum(CommitActions(version=0)) is None


def test_a_count_over_a_commit_of_another_writer_is_not_our_own() -> None:
    own = CommitActions(version=1, commit_info={CHECKSUM_KEY: 1})
    others = CommitActions(version=2, commit_info={"operation": "WRITE"})
    checksum = first_version_checksum(replace(_first(), commit_info={CHECKSUM_KEY: 0}))
    found = []
    for actions in (own, others, own):
        assert checksum is not None
        checksum = next_version_checksum(checksum, actions)
        found.append(checksum is not None and checksum.is_own)
    assert found == [True, False, False]


def test_adds_and_removes_are_counted() -> None:
    previous = replace(EMPTY, num_files=3, size_bytes=30)
    actions = CommitActions(
        version=1,
        adds=(_add("d", 7),),
        removes=(_remove("a", 10), _remove("b", 10)),
        commit_info={"txnId": "t", "inCommitTimestamp": 99},
    )
    assert next_version_checksum(previous, actions) == replace(
        EMPTY, num_files=2, size_bytes=17, transaction_id="t", in_commit_timestamp_ms=99
    )


def test_deletion_vectors_are_counted_by_their_rows() -> None:
    previous = replace(EMPTY, num_files=1, size_bytes=10)
    once = next_version_checksum(
        previous, CommitActions(version=1, adds=(_add("a", rows=3),), removes=(_remove("a"),))
    )
    assert once is not None
    assert (once.num_files, once.num_deletion_vectors, once.num_deleted_records) == (1, 1, 3)
    twice = next_version_checksum(
        once,
        CommitActions(version=2, adds=(_add("a", rows=5),), removes=(_remove("a", rows=3),)),
    )
    assert twice is not None
    assert (twice.num_files, twice.num_deletion_vectors, twice.num_deleted_records) == (1, 1, 5)


def test_more_than_a_hundred_transactions_are_not_repeated_by_each_version() -> None:
    txns = tuple(SetTransaction(app_id=str(number), version=1) for number in range(101))
    for written, kept in ((txns[:100], txns[:100]), (txns, None)):
        data = encode_version_checksum(replace(EMPTY, transactions=written))
        parsed = parse_version_checksum(data)
        assert parsed is not None
        assert parsed.transactions == kept


def test_state_of_applications_and_domains_is_carried_on() -> None:
    previous = replace(
        EMPTY,
        transactions=(SetTransaction(app_id="a", version=1), SetTransaction(app_id="b", version=1)),
        domain_metadata=(DomainMetadata(domain="d", configuration="1", removed=False),),
    )
    actions = CommitActions(
        version=1,
        txns=(SetTransaction(app_id="a", version=2),),
        domain_metadata=(
            DomainMetadata(domain="d", configuration="", removed=True),
            DomainMetadata(domain="e", configuration="2", removed=False),
        ),
    )
    following = next_version_checksum(previous, actions)
    assert following is not None
    assert following.transactions == (
        SetTransaction(app_id="a", version=2),
        SetTransaction(app_id="b", version=1),
    )
    assert following.domain_metadata == (
        DomainMetadata(domain="e", configuration="2", removed=False),
    )
    unknown = replace(previous, transactions=None, domain_metadata=None)
    following = next_version_checksum(unknown, actions)
    assert following is not None
    assert following.transactions is None
    assert following.domain_metadata is None


@pytest.mark.parametrize(
    "actions",
    [
        CommitActions(version=1, removes=(_remove("a", None),)),
        CommitActions(version=1, removes=(_remove("a"), _remove("b"))),
        CommitActions(version=1, removes=(_remove("a", 99),)),
        CommitActions(version=1, adds=(_add("a", data_change=False),)),
    ],
)
def test_a_commit_that_does_not_tell_ends_the_count(actions: CommitActions) -> None:
    assert next_version_checksum(replace(EMPTY, num_files=1, size_bytes=10), actions) is None
