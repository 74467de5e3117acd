"""Who loses a race: each pair of transactions and its verdict."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from dagster_delta.errors import (
    CommitConflict,
    ConcurrentAppend,
    ConcurrentDeleteDelete,
    ConcurrentDeleteRead,
    ConcurrentDomainMetadata,
    ConcurrentTransaction,
    MetadataChanged,
    ProtocolChanged,
)
from dagster_delta.protocol.actions import (
    AddFile,
    DomainMetadata,
    Format,
    Metadata,
    Protocol,
    RemoveFile,
    SetTransaction,
)
from dagster_delta.protocol.log.commit_file import CommitActions
from dagster_delta.protocol.log.conflict_checker import (
    ReadScope,
    TransactionFacts,
    check_conflicts,
)
from dagster_delta.protocol.schema import PrimitiveType, StructField, StructType

PROTOCOL = Protocol(min_reader_version=1, min_writer_version=2)
METADATA = Metadata(
    id="t",
    format=Format(),
    schema_string='{"type":"struct","fields":[]}',
    partition_columns=("p",),
    configuration={},
)


def add(path: str, p: str = "1") -> AddFile:
    return AddFile(
        path=path,
        partition_values={"p": p},
        size_bytes=1,
        modification_time_ms=0,
        data_change=True,
    )


def remove(path: str) -> RemoveFile:
    return RemoveFile(path=path, data_change=True)


def in_partition(*values: str) -> ReadScope:
    return ReadScope(
        may_hold=lambda files: [file for file in files if file.partition_values["p"] in values]
    )


BLIND = TransactionFacts(protocol=PROTOCOL, metadata=METADATA)
OVERWRITE = replace(BLIND, reads=ReadScope(whole_table=True), removed_paths=frozenset({"a", "b"}))
SERIALIZABLE_OVERWRITE = replace(OVERWRITE, isolation_level="Serializable")
SCHEMA_OVERWRITE = replace(OVERWRITE, changes_metadata=True)
PARTITION_1 = replace(
    BLIND,
    reads=replace(in_partition("1"), paths=frozenset({"a"})),
    removed_paths=frozenset({"a"}),
)
COMPACTION = replace(
    BLIND,
    isolation_level="SnapshotIsolation",
    reads=ReadScope(paths=frozenset({"a", "b"})),
    removed_paths=frozenset({"a", "b"}),
)
ONLY_REMOVES = replace(BLIND, removed_paths=frozenset({"a"}))
OF_APP = replace(BLIND, app_ids=frozenset({"app"}))
OF_DOMAIN = replace(BLIND, domains=frozenset({"d"}))

APPENDED = CommitActions(1, commit_info={"isBlindAppend": True}, adds=(add("new"),))
APPENDED_ELSEWHERE = CommitActions(1, commit_info={"isBlindAppend": True}, adds=(add("new", "2"),))
OVERWRITTEN = CommitActions(1, adds=(add("new"),), removes=(remove("a"), remove("b")))
OVERWRITTEN_ELSEWHERE = CommitActions(1, adds=(add("new", "2"),), removes=(remove("c"),))
DELETED = CommitActions(1, removes=(remove("a"),))
DELETED_ELSEWHERE = CommitActions(1, removes=(remove("c"),))
NEW_METADATA = CommitActions(
    1,
    metadata=Metadata(
        id="t", format=Format(), schema_string="{}", partition_columns=(), configuration={}
    ),
)
SAME_METADATA = CommitActions(
    1, commit_info={"isBlindAppend": True}, metadata=METADATA, protocol=PROTOCOL
)
NEW_PROTOCOL = CommitActions(1, protocol=Protocol(min_reader_version=2, min_writer_version=5))
APP = CommitActions(1, txns=(SetTransaction(app_id="app", version=3),))
OTHER_APP = CommitActions(1, txns=(SetTransaction(app_id="other", version=3),))
DOMAIN = CommitActions(
    1, domain_metadata=(DomainMetadata(domain="d", configuration="{}", removed=False),)
)

VERDICTS: list[tuple[str, TransactionFacts, CommitActions, type[CommitConflict] | None]] = [
    ("append, append", BLIND, APPENDED, None),
    ("append, overwrite", BLIND, OVERWRITTEN, None),
    ("append, delete", BLIND, DELETED, None),
    ("append, metadata", BLIND, NEW_METADATA, MetadataChanged),
    ("append, metadata restated", BLIND, SAME_METADATA, None),
    ("append, protocol", BLIND, NEW_PROTOCOL, ProtocolChanged),
    ("append, txn of another app", OF_APP, OTHER_APP, None),
    ("append, txn of the same app", OF_APP, APP, ConcurrentTransaction),
    ("append without txn, txn", BLIND, APP, None),
    ("append, domain", BLIND, DOMAIN, None),
    ("domain, same domain", OF_DOMAIN, DOMAIN, ConcurrentDomainMetadata),
    ("overwrite, append", OVERWRITE, APPENDED, None),
    ("serializable overwrite, append", SERIALIZABLE_OVERWRITE, APPENDED, ConcurrentAppend),
    ("overwrite of the schema, append", SCHEMA_OVERWRITE, APPENDED, ConcurrentAppend),
    ("overwrite, overwrite", OVERWRITE, OVERWRITTEN, ConcurrentAppend),
    ("overwrite, delete", OVERWRITE, DELETED, ConcurrentDeleteRead),
    (
        "overwrite, delete of a file it never saw",
        OVERWRITE,
        DELETED_ELSEWHERE,
        ConcurrentDeleteRead,
    ),
    ("partition, append there", PARTITION_1, APPENDED, None),
    (
        "serializable partition, append there",
        replace(PARTITION_1, isolation_level="Serializable"),
        APPENDED,
        ConcurrentAppend,
    ),
    (
        "serializable partition, append elsewhere",
        replace(PARTITION_1, isolation_level="Serializable"),
        APPENDED_ELSEWHERE,
        None,
    ),
    ("partition, overwrite there", PARTITION_1, OVERWRITTEN, ConcurrentAppend),
    ("partition, overwrite elsewhere", PARTITION_1, OVERWRITTEN_ELSEWHERE, None),
    ("partition, delete there", PARTITION_1, DELETED, ConcurrentDeleteRead),
    ("partition, delete elsewhere", PARTITION_1, DELETED_ELSEWHERE, None),
    ("compaction, append", COMPACTION, APPENDED, None),
    ("compaction, overwrite elsewhere", COMPACTION, OVERWRITTEN_ELSEWHERE, None),
    ("compaction, delete of an input", COMPACTION, DELETED, ConcurrentDeleteRead),
    ("removal, removal of the same file", ONLY_REMOVES, DELETED, ConcurrentDeleteDelete),
    ("removal, removal of another file", ONLY_REMOVES, DELETED_ELSEWHERE, None),
]


@pytest.mark.parametrize(
    ("mine", "winner", "verdict"),
    [pytest.param(*case[1:], id=case[0]) for case in VERDICTS],
)
def test_verdict(
    mine: TransactionFacts, winner: CommitActions, verdict: type[CommitConflict] | None
) -> None:
    conflict = check_conflicts(mine, [winner])
    assert (type(conflict) if conflict else None) is verdict


def test_the_first_conflicting_winner_is_named() -> None:
    conflict = check_conflicts(
        PARTITION_1,
        [replace(APPENDED, version=4), replace(DELETED, version=5)],
    )
    assert isinstance(conflict, ConcurrentDeleteRead)
    assert (conflict.version, conflict.file) == (5, "a")


@pytest.mark.parametrize(
    ("winners", "version", "kind"),
    [
        ((OVERWRITTEN_ELSEWHERE, OVERWRITTEN, NEW_METADATA), 1, ConcurrentAppend),
        ((DELETED_ELSEWHERE, DELETED, OVERWRITTEN), 1, ConcurrentDeleteRead),
        ((OVERWRITTEN_ELSEWHERE, NEW_METADATA, OVERWRITTEN, DELETED), 1, MetadataChanged),
        ((NEW_PROTOCOL, DELETED), 0, ProtocolChanged),
        ((DELETED_ELSEWHERE, OVERWRITTEN_ELSEWHERE), None, None),
    ],
)
def test_the_oldest_conflict_is_named(
    winners: tuple[CommitActions, ...], version: int | None, kind: type[CommitConflict] | None
) -> None:
    numbered = [replace(each, version=number) for number, each in enumerate(winners)]
    conflict = check_conflicts(PARTITION_1, numbered)
    assert (conflict and conflict.version, conflict and type(conflict)) == (version, kind)


def test_the_files_of_all_commits_up_to_an_incompatible_one_are_looked_at_together() -> None:
    asked: list[list[str]] = []

    def may_hold(files: Sequence[AddFile]) -> Sequence[AddFile]:
        asked.append([file.path for file in files])
        return ()

    mine = replace(BLIND, reads=ReadScope(may_hold=may_hold))
    others = [replace(OVERWRITTEN_ELSEWHERE, adds=(add(name),)) for name in "xyz"]
    assert check_conflicts(mine, others) is None
    assert asked == [["x", "y", "z"]]
    # Its partition values may be those of other columns.
    assert check_conflicts(mine, [others[0], NEW_METADATA, others[1]]) is not None
    assert asked[1:] == [["x"]]


def test_no_winner_is_no_conflict() -> None:
    assert check_conflicts(SERIALIZABLE_OVERWRITE, []) is None


def test_creation_loses_to_any_other_creation() -> None:
    creation = TransactionFacts(protocol=None, metadata=None, changes_metadata=True)
    conflict = check_conflicts(creation, [replace(NEW_METADATA, version=0, protocol=PROTOCOL)])
    assert type(conflict) is MetadataChanged
    assert "created the table first" in conflict.message


def with_columns(*fields: StructField, **configuration: str) -> Metadata:
    return replace(
        METADATA, schema_string=StructType(fields).to_json(), configuration=configuration
    )


A = StructField("a", PrimitiveType("long"))
B = StructField("b", PrimitiveType("string"))
DEFAULTED = StructField("b", PrimitiveType("string"), metadata={"CURRENT_DEFAULT": "'x'"})
MAPPED = StructField(
    "b", PrimitiveType("string"), metadata={"comment": "new", "delta.columnMapping.id": 2}
)
NESTED = StructField("b", StructType((DEFAULTED,)))


@pytest.mark.parametrize(
    ("after", "is_conflict"),
    [
        pytest.param(with_columns(A, B), False, id="new column"),
        pytest.param(with_columns(B, A), False, id="new column in front"),
        pytest.param(
            with_columns(A, MAPPED, **{"delta.columnMapping.maxColumnId": "2"}),
            False,
            id="new mapped column",
        ),
        pytest.param(with_columns(A, DEFAULTED), True, id="default"),
        pytest.param(with_columns(A, NESTED), True, id="nested default"),
        pytest.param(
            with_columns(A, StructField("b", B.data_type, nullable=False)), True, id="not null"
        ),
        pytest.param(
            with_columns(StructField("a", PrimitiveType("double")), B), True, id="another type"
        ),
        pytest.param(with_columns(B), True, id="a column is gone"),
        pytest.param(with_columns(A, B, **{"delta.appendOnly": "true"}), True, id="property"),
    ],
)
def test_new_columns_are_a_conflict_only_where_files_without_them_do_not_fit(
    after: Metadata, *, is_conflict: bool
) -> None:
    mine = TransactionFacts(protocol=PROTOCOL, metadata=with_columns(A))
    added = replace(NEW_METADATA, metadata=after)
    assert (check_conflicts(mine, [added]) is not None) is is_conflict
    assert check_conflicts(replace(mine, changes_metadata=True), [added]) is not None
