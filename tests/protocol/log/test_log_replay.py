"""Reconciliation of file actions. Spec: Action Reconciliation."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_delta.errors import CorruptLog
from dagster_delta.protocol.log.commit_file import decode_commit
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.protocol.log.replay import (
    DELETION_VECTOR_TYPE,
    LIVE_FILE_SCHEMA,
    TOMBSTONE_SCHEMA,
    HiddenFiles,
    file_key,
    keys_of,
)
from dagster_delta.protocol.log.tail import (
    RawCommit,
    add_columns,
    decode_tail,
    reconcile_tail,
    remove_columns,
)
from tests.table.logs import (
    EVERY_COLUMN,
    EVERY_FIELD,
    PROTOCOL,
    Action,
    add_file,
    encode,
    metadata,
    remove_file,
    vector,
)

PATHS = st.sampled_from(["a", "b", "c=1/d", "file:/x", "file:///x", "/x", "e%20f"])
VECTORS = st.none() | st.builds(
    lambda name, offset: {
        "storage_type": "u",
        "path_or_inline_dv": name,
        "offset": offset,
        "size_in_bytes": 1,
        "cardinality": 1,
    },
    st.sampled_from(["v", "w"]),
    st.none() | st.integers(0, 3),
)


def _commits(*files: tuple[Action, ...]) -> list[RawCommit]:
    return [
        RawCommit(version, commit_path(version), encode(*actions))
        for version, actions in enumerate(files)
    ]


def _live(commits: list[RawCommit]) -> list[str]:
    tail = reconcile_tail([decode_tail(commits)])
    paths: list[str] = add_columns([decode_tail(commits)], tail.live_adds)["path"].to_pylist()
    return paths


def _removed(commits: list[RawCommit]) -> list[str]:
    tail = reconcile_tail([decode_tail(commits)])
    paths: list[str] = remove_columns([decode_tail(commits)], tail.live_removes)["path"].to_pylist()
    return paths


def test_a_removed_file_is_gone_and_leaves_a_tombstone() -> None:
    commits = _commits((add_file("a"), add_file("b")), (remove_file("a"),))
    assert _live(commits) == ["b"]
    assert _removed(commits) == ["a"]


def test_a_file_added_again_is_live_again() -> None:
    commits = _commits((add_file("a"),), (remove_file("a"),), (add_file("a"),))
    assert _live(commits) == ["a"]
    assert _removed(commits) == []


def test_the_newest_add_of_a_file_replaces_the_older() -> None:
    commits = _commits((add_file("a", stats="old"), add_file("b")), (add_file("a", stats="new"),))
    tail = reconcile_tail([decode_tail(commits)])
    found = add_columns([decode_tail(commits)], tail.live_adds)
    assert found.select(["path", "stats"]).to_pylist() == [
        {"path": "b", "stats": None},
        {"path": "a", "stats": "new"},
    ]


def test_a_new_deletion_vector_makes_another_logical_file() -> None:
    commits = _commits(
        (add_file("a"),),
        (remove_file("a"), add_file("a", deletionVector=vector("v"))),
        (
            remove_file("a", deletionVector=vector("v")),
            add_file("a", deletionVector=vector("v", offset=9, cardinality=5)),
        ),
    )
    tail = reconcile_tail([decode_tail(commits)])
    found = add_columns([decode_tail(commits)], tail.live_adds)
    assert found["deletion_vector"].to_pylist() == [
        {
            "storage_type": "u",
            "path_or_inline_dv": "v",
            "offset": 9,
            "size_in_bytes": 10,
            "cardinality": 5,
        }
    ]
    assert len(tail.live_removes) == 2


def test_three_spellings_of_an_absolute_local_path_are_one_file() -> None:
    assert _live(_commits((add_file("/x/a%20b"),), (remove_file("file:///x/a%20b"),))) == []
    assert _live(_commits((add_file("file:/x/a"),), (remove_file("/x/a"),))) == []
    assert _live(_commits((add_file("x/a"),), (remove_file("/x/a"),))) == ["x/a"]


def test_paths_are_not_decoded_to_compare_them() -> None:
    assert _live(_commits((add_file("a%2520b"),), (remove_file("a%20b"),))) == ["a%2520b"]


def test_several_runs_of_commits_reconcile_like_one() -> None:
    commits = _commits(
        (add_file("a"), add_file("b"), remove_file("z")),
        (remove_file("a"), add_file("c")),
        (add_file("a"), remove_file("b")),
    )
    whole = reconcile_tail([decode_tail(commits)])
    pieces = reconcile_tail([decode_tail([commit]) for commit in commits])
    assert pieces.live_adds == whole.live_adds
    assert pieces.live_removes == whole.live_removes
    assert set(pieces.keys) == set(whole.keys)


def test_compacted_commits_may_list_the_newest_action_first() -> None:
    data = encode(
        remove_file("a"),
        add_file("b"),
        add_file("a"),
        metadata({"x": "new"}),
        metadata({"x": "old"}),
    )
    compacted = RawCommit(5, "p", data, is_compacted=True)
    tail = decode_tail([compacted])
    assert _live([compacted]) == ["b"]
    assert tail.metadata is not None
    assert tail.metadata.configuration == {"x": "new"}


def test_table_state_is_the_newest_of_its_kind() -> None:
    def txn(version: int) -> Action:
        return {"txn": {"appId": "app", "version": version}}

    def domain(removed: bool) -> Action:
        return {"domainMetadata": {"domain": "d", "configuration": "", "removed": removed}}

    tail = decode_tail(
        _commits((PROTOCOL, metadata(), txn(1), domain(False)), (txn(2), domain(True)))
    )
    assert tail.protocol is not None
    assert tail.metadata is not None
    assert tail.txns["app"].version == 2
    assert tail.domain_metadata["d"].removed


@pytest.mark.parametrize("action", [PROTOCOL, metadata()])
def test_a_commit_that_says_twice_what_may_be_said_once_is_refused(action: Action) -> None:
    with pytest.raises(CorruptLog):
        decode_tail(_commits((action, action)))


def test_every_field_of_an_action_reaches_its_column() -> None:
    commits = _commits((add_file("a", **EVERY_FIELD), add_file("b")))
    added = add_columns([decode_tail(commits)], [0, 1])
    assert added.schema == LIVE_FILE_SCHEMA
    added.validate(full=True)
    assert added.slice(0, 1).to_pylist() == [{"path": "a", **EVERY_COLUMN}]
    commits = _commits(
        (remove_file("a", deletionTimestamp=7, extendedFileMetadata=True, **EVERY_FIELD),)
    )
    removed = remove_columns([decode_tail(commits)], [0])
    assert removed.schema == TOMBSTONE_SCHEMA
    removed.validate(full=True)
    row = removed.to_pylist()[0]
    assert (row["deletion_timestamp_ms"], row["extended_file_metadata"]) == (7, True)
    assert (row["size_bytes"], row["base_row_id"], row["tags"]) == (3, 5, [("t", "u")])


def test_a_field_that_is_no_column_may_be_malformed() -> None:
    added = add_columns([decode_tail(_commits((add_file("a", dataChange="true"),)))], [0])
    assert added["path"].to_pylist() == ["a"]


def test_a_sidecar_in_a_commit_is_not_read() -> None:
    (commit,) = _commits(({"sidecar": {"path": 7}}, add_file("a")))
    assert decode_tail([commit]).add_paths == ["a"]
    assert len(decode_commit(commit.data, version=commit.version).adds) == 1


def test_a_commit_without_live_files_is_not_decoded_again() -> None:
    # If it were, the malformed value would be found.
    commits = _commits(
        (add_file("a", stats=5), remove_file("x", size="?", deletionTimestamp=10)),
        (remove_file("a", deletionTimestamp=20), add_file("b")),
    )
    tails = [decode_tail(commits[:1]), decode_tail(commits[1:])]
    tail = reconcile_tail(tails)
    assert add_columns(tails, tail.live_adds)["path"].to_pylist() == ["b"]
    removed = remove_columns(tails, tail.live_removes, removed_after_ms=10)
    assert removed["path"].to_pylist() == ["a"]
    with pytest.raises(CorruptLog):
        remove_columns(tails, tail.live_removes, removed_after_ms=9)


@given(
    st.lists(
        st.lists(
            st.tuples(st.booleans(), st.sampled_from("abcdef"), st.none() | st.integers(0, 4)),
            min_size=1,
        ),
        min_size=1,
    ),
    st.integers(0, 4),
)
def test_commits_that_are_not_decoded_again_hold_nothing_that_is_asked_for(
    commits: list[list[tuple[bool, str, int | None]]], since: int
) -> None:
    encoded = _commits(
        *(
            tuple(
                add_file(path) if is_add else remove_file(path, deletionTimestamp=removed_ms)
                for is_add, path, removed_ms in actions
            )
            for actions in commits
        )
    )
    newest = {path: (is_add, ms) for actions in commits for is_add, path, ms in actions}
    tails = [decode_tail([commit]) for commit in encoded]
    tail = reconcile_tail(tails)
    live = add_columns(tails, tail.live_adds)["path"].to_pylist()
    removed = remove_columns(tails, tail.live_removes, removed_after_ms=since)
    assert sorted(live) == sorted(path for path, (is_add, _) in newest.items() if is_add)
    assert sorted(removed["path"].to_pylist()) == sorted(
        path
        for path, (is_add, ms) in newest.items()
        if not is_add and ms is not None and ms > since
    )


@given(st.lists(st.tuples(PATHS, VECTORS)))
def test_columns_and_single_files_have_the_same_keys(files: list[tuple[str, object]]) -> None:
    paths = pa.chunked_array([pa.array([path for path, _ in files], pa.string())])
    vectors = pa.chunked_array([pa.array([each for _, each in files], DELETION_VECTOR_TYPE)])
    assert keys_of(paths, vectors).to_pylist() == [_key(path, each) for path, each in files]


@given(st.lists(st.tuples(PATHS, VECTORS)), st.lists(st.tuples(PATHS, VECTORS)))
def test_exactly_the_files_with_a_newer_action_are_hidden(
    files: list[tuple[str, object]], newer: list[tuple[str, object]]
) -> None:
    hidden = {_key(path, each) for path, each in newer}
    paths = pa.chunked_array([[path] for path, _ in files], pa.string())
    vectors = pa.array([each for _, each in files], DELETION_VECTOR_TYPE)
    kept = HiddenFiles(list(hidden)).rows_to_keep(
        paths, lambda mask: pa.chunked_array([vectors.filter(mask)])
    )
    expected = [_key(path, each) not in hidden for path, each in files]
    assert (kept.to_pylist() if kept is not None else [True] * len(files)) == expected


def _key(path: str, descriptor: object) -> str:
    if not isinstance(descriptor, dict):
        return file_key(path)
    return file_key(
        path,
        descriptor["storage_type"],
        descriptor["path_or_inline_dv"],
        descriptor["offset"],
    )
