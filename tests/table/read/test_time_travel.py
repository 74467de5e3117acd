"""Versions by time. Without in-commit timestamps, as the reference implementation counts."""

from __future__ import annotations

import datetime as dt
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_delta.errors import InvalidArgument, InvalidTable, TableNotFound, VersionNotFound
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.protocol.log.segment import LogListing
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.storage.object_store import ObjectMeta
from dagster_delta.table.log.commit_range import commit_times, parse_timestamp
from dagster_delta.table.read.snapshot import Snapshot
from tests.table.logs import PROTOCOL, Action, add_file, checkpoint, commit, features, metadata


def _table(*times_ms: int) -> MemoryStore:
    """A table whose versions were written at these times."""
    now = [0]
    store = MemoryStore(clock_ms=lambda: now[0])
    for version, time in enumerate(times_ms):
        now[0] = time
        first = [PROTOCOL, metadata()] if version == 0 else []
        commit(store, version, *first, add_file(f"f{version}"))
    return store


def _version_at(store: MemoryStore, timestamp: dt.datetime | str | int) -> int:
    return Snapshot.load(store, timestamp=timestamp).version


@pytest.mark.parametrize(
    ("timestamp", "version"), [(1000, 0), (1999, 0), (2000, 1), (2500, 1), (3000, 2)]
)
def test_the_newest_version_that_is_not_younger_is_found(timestamp: int, version: int) -> None:
    assert _version_at(_table(1000, 2000, 3000), timestamp) == version


def test_a_time_after_the_latest_version_is_refused_with_its_time() -> None:
    with pytest.raises(VersionNotFound, match=r"latest one, 1, .*1970-01-01T00:00:02") as raised:
        _version_at(_table(1000, 2000), 2001)
    assert raised.value.table is not None


def test_a_time_before_the_first_version_is_refused_with_its_time() -> None:
    with pytest.raises(VersionNotFound, match=r"version 0, .*1970-01-01T00:00:01"):
        _version_at(_table(1000, 2000), 999)


def test_file_times_that_run_backwards_are_straightened() -> None:
    store = _table(5000, 1000, 1000, 9000)
    assert _version_at(store, 5000) == 0
    assert _version_at(store, 5001) == 1
    assert _version_at(store, 5002) == 2
    assert _version_at(store, 8999) == 2
    assert _version_at(store, 9000) == 3


@given(st.lists(st.integers(0, 10**12), min_size=1))
def test_straightened_times_grow_and_never_lie_before_the_file_time(times: list[int]) -> None:
    files = [ObjectMeta(commit_path(n), 1, time) for n, time in enumerate(times)]
    straight = list(commit_times(LogListing.sort(files), range(len(times))).values())
    assert all(low < high for low, high in pairwise(straight))
    assert all(found >= time for found, time in zip(straight, times, strict=True))


def test_versions_that_cannot_be_rebuilt_are_no_candidates() -> None:
    store = _table(1000, 2000, 3000, 4000)
    checkpoint(store, 2, [PROTOCOL, metadata(), add_file("f0")])
    store.delete([commit_path(0)])
    assert _version_at(store, 3000) == 2
    with pytest.raises(VersionNotFound, match="begins with version 2"):
        _version_at(store, 2000)


def test_a_log_without_commits_has_no_times() -> None:
    store = _table(1000)
    checkpoint(store, 0, [PROTOCOL, metadata()])
    store.delete([commit_path(0)])
    with pytest.raises(VersionNotFound, match="by version 0"):
        _version_at(store, 1000)


def test_where_there_is_no_table_there_are_no_times() -> None:
    with pytest.raises(TableNotFound):
        _version_at(MemoryStore(), 0)


# In-commit timestamps


def _own(time_ms: int | None, *actions: Action) -> list[Action]:
    info = {} if time_ms is None else {"inCommitTimestamp": time_ms}
    return [{"commitInfo": info}, *actions]


def _enabled(**properties: str) -> Action:
    return metadata({"delta.enableInCommitTimestamps": "true", **properties})


def test_in_commit_timestamps_count_instead_of_file_times() -> None:
    store = MemoryStore(clock_ms=lambda: 99_000)
    commit(store, 0, *_own(1000, features("inCommitTimestamp"), _enabled()))
    for version in range(1, 20):
        commit(store, version, *_own(1000 + version * 10))
    for version in range(20):
        assert _version_at(store, 1000 + version * 10) == version
        assert _version_at(store, min(1190, 1009 + version * 10)) == version
    with pytest.raises(VersionNotFound):
        _version_at(store, 1191)
    with pytest.raises(VersionNotFound):
        _version_at(store, 999)


def test_before_their_enablement_file_times_count() -> None:
    now = [0]
    store = MemoryStore(clock_ms=lambda: now[0])
    for version in range(3):
        now[0] = 1000 * (version + 1)
        commit(store, version, *([PROTOCOL, metadata()] if version == 0 else [add_file("a")]))
    properties = {
        "delta.inCommitTimestampEnablementVersion": "3",
        "delta.inCommitTimestampEnablementTimestamp": "4000",
    }
    commit(store, 3, *_own(4000, features("inCommitTimestamp"), _enabled(**properties)))
    commit(store, 4, *_own(5000))
    assert [_version_at(store, time) for time in (1000, 2500, 3000, 3999)] == [0, 1, 2, 2]
    assert [_version_at(store, time) for time in (4000, 4999, 5000)] == [3, 3, 4]


def test_a_commit_that_lacks_its_timestamp_is_refused() -> None:
    store = MemoryStore()
    commit(store, 0, *_own(1000, features("inCommitTimestamp"), _enabled()))
    commit(store, 1, *_own(None))
    with pytest.raises(InvalidTable, match="in-commit timestamp"):
        _version_at(store, 1000)


# What a timestamp is


@given(st.datetimes(dt.datetime(1970, 1, 1), dt.datetime(9000, 1, 1)))
def test_naive_datetimes_mean_utc(moment: dt.datetime) -> None:
    aware = moment.replace(tzinfo=dt.UTC)
    elapsed = aware - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    assert (
        parse_timestamp(moment) == parse_timestamp(aware) == elapsed // dt.timedelta(milliseconds=1)
    )
    assert parse_timestamp(aware.isoformat()) == parse_timestamp(aware)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1970-01-01", 0),
        ("1970-01-01T00:00:01Z", 1000),
        ("1970-01-01 00:00:01.234", 1234),
        ("1970-01-01T02:00:00+02:00", 0),
    ],
)
def test_iso_texts_are_understood(text: str, milliseconds: int) -> None:
    assert parse_timestamp(text) == milliseconds


@pytest.mark.parametrize("nonsense", ["yesterday", ""])
def test_anything_else_is_refused(nonsense: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_timestamp(nonsense)
