"""Which files make up a version. Spec: Delta Log Entries; Checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_delta.errors import LogGap, TableNotFound, VersionNotFound
from dagster_delta.protocol.log.paths import (
    checkpoint_path,
    checksum_path,
    commit_path,
    multi_part_checkpoint_paths,
    v2_checkpoint_path,
)
from dagster_delta.protocol.log.segment import LogListing, LogSegment
from tests.table.logs import compacted_path


@dataclass(frozen=True)
class File:
    path: str
    size_bytes: int = 1
    modified_ms: int = 0


def _listing(*paths: str) -> LogListing:
    return LogListing.sort(File(path) for path in paths)


def _segment(*paths: str, version: int | None = None) -> LogSegment:
    return _listing(*paths).segment(version, table="t")


def _commits(start: int, end: int) -> list[str]:
    return [commit_path(version) for version in range(start, end + 1)]


def _ranges(segment: LogSegment) -> list[tuple[int, int]]:
    return [(each.start, each.end) for each in segment.replay]


def _unique(number: int) -> str:
    return f"{number:08x}-0000-0000-0000-000000000000"


def test_commits_alone_are_replayed_from_the_first() -> None:
    segment = _segment(*_commits(0, 3))
    assert segment.version == 3
    assert segment.checkpoint is None
    assert _ranges(segment) == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert segment.commit == File(commit_path(3))


def test_replay_starts_after_the_newest_checkpoint() -> None:
    segment = _segment(*_commits(0, 9), checkpoint_path(3), checkpoint_path(7))
    assert segment.checkpoint is not None
    assert segment.checkpoint.version == 7
    assert _ranges(segment) == [(8, 8), (9, 9)]


def test_time_travel_uses_the_newest_checkpoint_that_is_not_younger() -> None:
    segment = _segment(*_commits(0, 9), checkpoint_path(3), checkpoint_path(7), version=6)
    assert segment.checkpoint is not None
    assert segment.checkpoint.version == 3
    assert _ranges(segment) == [(4, 4), (5, 5), (6, 6)]


def test_a_checkpoint_stands_for_commits_that_were_cleaned_up() -> None:
    segment = _segment(checkpoint_path(10), *_commits(11, 12))
    assert segment.version == 12
    assert _ranges(segment) == [(11, 11), (12, 12)]
    assert _segment(checkpoint_path(10)).commit is None


def test_a_checkpoint_with_a_missing_part_is_not_used() -> None:
    parts = multi_part_checkpoint_paths(2, 3)
    incomplete = _segment(*_commits(0, 2), *parts[:2])
    assert incomplete.checkpoint is None
    complete = _segment(*_commits(0, 2), *reversed(parts))
    assert complete.checkpoint is not None
    assert [file.path for file in complete.checkpoint.files] == list(parts)


def test_parts_of_different_attempts_are_not_mixed() -> None:
    two, three = multi_part_checkpoint_paths(2, 2), multi_part_checkpoint_paths(2, 3)
    assert _segment(*_commits(0, 2), two[0], three[1], three[2]).checkpoint is None
    segment = _segment(*_commits(0, 2), *two, three[0])
    assert segment.checkpoint is not None
    assert [file.path for file in segment.checkpoint.files] == list(two)


def test_an_empty_checkpoint_file_is_not_used() -> None:
    files = [File(commit_path(0)), File(checkpoint_path(0), size_bytes=0)]
    assert LogListing.sort(files).segment(table="t").checkpoint is None


def test_one_of_several_checkpoints_of_a_version_is_chosen_for_good() -> None:
    paths = [v2_checkpoint_path(1, _unique(number), "parquet") for number in (1, 2)]
    for given_order in (paths, paths[::-1]):
        segment = _segment(*_commits(0, 1), checkpoint_path(1), *given_order)
        assert segment.checkpoint is not None
        assert [file.path for file in segment.checkpoint.files] == [paths[1]]


def test_a_missing_commit_is_named() -> None:
    with pytest.raises(LogGap, match="version 2, ") as raised:
        _segment(*_commits(0, 1), *_commits(3, 4))
    assert (raised.value.version, raised.value.table) == (4, "t")
    with pytest.raises(LogGap, match="versions 0 to 3, 5, "):
        _segment(commit_path(4), commit_path(6))


def test_a_gap_does_not_hide_what_lies_before_it() -> None:
    assert _segment(*_commits(0, 1), commit_path(3), version=1).version == 1
    with pytest.raises(LogGap):
        _segment(*_commits(0, 1), commit_path(3), version=2)


def test_a_gap_of_absurd_length_is_found_at_once() -> None:
    with pytest.raises(LogGap, match="versions 1 to 99999999999999999998"):
        _segment(commit_path(0), commit_path(10**20 - 1))


def test_a_gap_before_the_checkpoint_does_not_matter() -> None:
    assert _segment(commit_path(0), checkpoint_path(5), commit_path(6)).version == 6


@pytest.mark.parametrize("version", [9, 4])
def test_an_unknown_version_is_refused_with_the_available_range(version: int) -> None:
    with pytest.raises(VersionNotFound, match="from version 5 to 8"):
        _segment(checkpoint_path(5), *_commits(6, 8), version=version)


def test_nothing_in_the_log_is_no_table() -> None:
    with pytest.raises(TableNotFound):
        _segment()
    with pytest.raises(TableNotFound):
        _segment(checksum_path(0), "_delta_log/_last_checkpoint", "_delta_log/.0.json.crc")


def test_compacted_commits_are_used_where_they_fit() -> None:
    paths = [*_commits(0, 9), compacted_path(2, 4), compacted_path(2, 6), compacted_path(8, 12)]
    assert _ranges(_segment(*paths)) == [(0, 0), (1, 1), (2, 6), (7, 7), (8, 8), (9, 9)]
    assert _ranges(_segment(*paths, version=5)) == [(0, 0), (1, 1), (2, 4), (5, 5)]
    # One that begins before the checkpoint would bring back what it hides.
    assert _ranges(_segment(*paths, checkpoint_path(3))) == [
        (version, version) for version in range(4, 10)
    ]


def test_the_checksum_of_the_version_itself_is_found() -> None:
    paths = [*_commits(0, 2), checksum_path(1)]
    assert _segment(*paths).checksum is None
    assert _segment(*paths, version=1).checksum == File(checksum_path(1))


@given(st.sets(st.integers(0, 12)), st.sets(st.integers(0, 12), max_size=3), st.integers(0, 12))
def test_a_segment_is_contiguous_or_refused(
    commits: set[int], checkpoints: set[int], version: int
) -> None:
    paths = [commit_path(each) for each in commits] + [
        checkpoint_path(each) for each in checkpoints
    ]
    base = max((each for each in checkpoints if each <= version), default=-1)
    readable = all(each in commits for each in range(base + 1, version + 1))
    try:
        segment = _segment(*paths, version=version)
    except (LogGap, VersionNotFound, TableNotFound):
        assert not readable or version > max(commits | checkpoints)
    else:
        assert readable
        assert [each.start for each in segment.replay] == list(range(base + 1, version + 1))
