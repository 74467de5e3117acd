"""Why a tick requested no run, for the list of ticks in the UI."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from dagster_delta.errors import DeltaError
from dagster_delta.orchestration.metadata_keys import first_names
from dagster_delta.orchestration.sensors.table_watcher import PollResult
from dagster_delta.orchestration.sensors.watch_state import SensorState, WaitingChanges

# A longer list is not useful.


def skip_reason(
    polls: Sequence[PollResult],
    before: SensorState,
    waiting: Mapping[str, str],
    reported: Collection[str],
    failures: Sequence[DeltaError],
) -> str:
    """The reason by table, the tables with news first."""
    groups: dict[str, list[str]] = {
        "Changes wait": [f"{uri}: {text}" for uri, text in waiting.items()],
        "Reported": [],
        "No partition to run for": [],
        "No changed rows to run for": [],
        "Watched from now on": [],
        "Not there yet": [],
        "Failed": [str(each) for each in failures],
        "No new commits": [],
    }
    for poll in polls:
        if poll.uri not in waiting:
            group, text = _outcome(poll, before, is_reported=poll.uri in reported)
            groups[group].append(text)
    found = [f"{group}: {first_names(texts, 10)}" for group, texts in groups.items() if texts]
    return ". ".join(found) or "There is no table below the root yet"


def waiting_text(
    waiting: WaitingChanges,
    now_ms: int,
    *,
    minimum_rows: int | None,
    minimum_age_seconds: float | None,
) -> str:
    """What pending changes are, and what they wait for."""
    what = f"{_versions(waiting.from_version, waiting.to_version)} with {_rows(waiting.rows)}"
    if waiting.unsent_keys is not None:
        return f"{what}, {len(waiting.unsent_keys)} partitions get their runs in the next ticks"
    limits = [] if minimum_rows is None else [f"{minimum_rows:,} rows"]
    if minimum_age_seconds is not None:
        age = (now_ms - waiting.seen_at_ms) / 1000
        limits.append(f"an age of {minimum_age_seconds:,.0f} seconds, which is {age:,.0f} now")
    return f"{what}, until {' or '.join(limits) or 'the next tick'}"


def _outcome(poll: PollResult, before: SensorState, *, is_reported: bool) -> tuple[str, str]:
    version = -1 if poll.state is None else poll.state.log.version
    known = before.tables.get(poll.uri)
    if poll.is_missing:
        return "Not there yet", poll.uri
    if poll.commits:
        commits = f"{len(poll.commits)} commit{'s' * (len(poll.commits) > 1)}"
        # A commit without a run or a report changed no partition that the target has.
        group = "Reported" if is_reported else "No partition to run for"
        return group, f"{commits} of {poll.uri}, up to version {version}"
    if known is None:
        return "Watched from now on", f"{poll.uri} after version {version}"
    if poll.ignored:
        versions = _versions(known.log.version + 1, version)
        return "No changed rows to run for", f"{poll.uri} {versions} ({', '.join(poll.ignored)})"
    return "No new commits", f"{poll.uri} (version {version})"


def _versions(first: int, last: int) -> str:
    return f"version {last}" if first == last else f"versions {first} to {last}"


def _rows(rows: int | None) -> str:
    return "an unknown number of rows" if rows is None else f"{rows:,} row{'s' * (rows != 1)}"
