"""Check of a round of the crash workload: the journals and the log against the model."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from dagster_delta import DeltaTable
from dagster_delta.errors import DeltaError
from dagster_delta.table.read.snapshot import Snapshot
from tests.soak.crash_steps import MULTI_COMMIT, OPERATION_ID, SCHEMA_STEPS, Model, Step, comparable
from tests.soak.crash_writer import Journal
from tests.soak.part import Round

REFUSALS = {
    "CommitConflict", "CommitRetriesExhausted", "ConcurrentAppend", "ConcurrentDeleteDelete", "ConcurrentDeleteRead",
    "ConcurrentDomainMetadata", "ConcurrentTransaction", "MetadataChanged", "ProtocolChanged",
    "SchemaMismatch",
}  # fmt: skip
"""How any step may be refused while others change the table."""

SCHEMA_REFUSALS = {"ColumnChangeFailed", "InvalidArgument", "InvalidCast", "SchemaChangeRefused"}


@dataclass
class Attempt:
    """A step and the answers that its processes got."""

    step: Step
    outcomes: list[tuple[str, int | None, str]] = field(default_factory=list)
    """(outcome, version, detail); none for a process that was killed."""
    began: float = 0.0
    """When its first process began it, by the clock of the machine."""
    ended: float = inf
    """When its last process had the answer; infinite if it was killed."""


@dataclass
class Commit:
    """One version of the archived log."""

    step_id: str | None
    adds: set[tuple[str, str]] = field(default_factory=set)
    """(path, unique id of the deletion vector)."""
    removes: set[tuple[str, str]] = field(default_factory=set)


@dataclass
class _Round:
    round: Round
    root: Path
    archive: Path
    attempts: dict[str, Attempt]
    commits: list[Commit]

    def fail(self, title: str, detail: str) -> None:
        self.round.fail(title, detail, save=self.round.scratch)


def check_round(round_: Round, root: Path, archive: Path, journals: Path) -> None:
    """Report everything that contradicts the model."""
    attempts = _read_journals(journals)
    round_.result.operations += len(attempts)
    commits = _read_log(archive)
    checked = _Round(round_, root, archive, attempts, commits)
    try:
        latest = DeltaTable(str(root)).version()
    except DeltaError as error:
        checked.fail(f"the table cannot be opened: {type(error).__name__}", str(error))
        return
    if latest != len(commits) - 1:
        checked.fail("versions are not contiguous", f"{latest} and {len(commits)} commits")
        return
    _check_answers(checked)
    _check_real_time(checked)
    model = _check_versions(checked)
    if model is not None:
        _check_latest(checked, model)


def _read_journals(directory: Path) -> dict[str, Attempt]:
    attempts: dict[str, Attempt] = {}
    for path in sorted(directory.glob("*.jsonl")):
        for entry in Journal(path).entries():
            if "begin" in entry:
                step = Step.from_json(entry["begin"])
                attempts.setdefault(step.id, Attempt(step, began=entry["at"])).ended = inf
            else:
                attempt = attempts[entry["end"]]
                attempt.outcomes.append((entry["outcome"], entry["version"], entry["detail"]))
                attempt.ended = entry["at"]
    return attempts


def _read_log(archive: Path) -> list[Commit]:
    """Commits from 0 up to the first gap, read without the library."""
    commits: list[Commit] = []
    while (path := archive / "_delta_log" / f"{len(commits):020}.json").exists():
        commit = Commit(None)
        for line in path.read_text().splitlines():
            action = json.loads(line)
            if "commitInfo" in action:
                commit.step_id = action["commitInfo"].get(OPERATION_ID)
            elif "add" in action:
                commit.adds.add(_key(action["add"]))
            elif "remove" in action:
                commit.removes.add(_key(action["remove"]))
        commits.append(commit)
    return commits


def _key(file: dict[str, Any]) -> tuple[str, str]:
    vector = file.get("deletionVector") or {}
    unique = f"{vector.get('storageType', '')}{vector.get('pathOrInlineDv', '')}"
    return unquote(file["path"]), f"{unique}@{vector['offset']}" if "offset" in vector else unique


def _check_answers(checked: _Round) -> None:
    """Acknowledged steps are in the log where they were said to be, refused ones are not in it."""
    versions: dict[str, list[int]] = {}
    for version, commit in enumerate(checked.commits):
        if commit.step_id is not None:
            versions.setdefault(commit.step_id, []).append(version)
    for step_id, attempt in checked.attempts.items():
        kind, found = attempt.step.kind, versions.get(step_id, [])
        where = f"{attempt.step}\nanswers {attempt.outcomes}\ncommits {found}"
        if kind not in MULTI_COMMIT and len(found) > 1:
            checked.fail(f"{kind} was committed twice", where)
        for outcome, answered, detail in attempt.outcomes:
            if outcome == "done":
                if answered is not None and answered not in found:
                    checked.fail(f"an acknowledged {kind} is not in the log", where)
                if answered is None and kind == "idempotent_append" and not found:
                    checked.fail("an append was skipped that is not in the log", where)
            elif not _is_allowed(kind, outcome):
                checked.fail(f"{kind} on a sound table: {outcome}", f"{detail}\n{where}")
            elif found and kind not in MULTI_COMMIT and outcome != "CommitStateUnknown":
                checked.fail(f"a refused {kind} is in the log: {outcome}", where)
    for step_id in versions.keys() - checked.attempts.keys():
        checked.fail("the log has a commit of no step", step_id)


def _check_real_time(checked: _Round) -> None:
    """No step is ordered before one that had ended when it began. With the model of each version
    that makes the history strictly serialisable: the order of the versions explains all of it.
    """
    earliest, of_version = inf, 0
    for version in reversed(range(len(checked.commits))):
        attempt = checked.attempts.get(checked.commits[version].step_id or "")
        if attempt is None or attempt.step.kind in MULTI_COMMIT:
            continue
        if attempt.began > earliest:
            where = f"version {version} began after version {of_version} was acknowledged"
            checked.fail("the versions contradict the order of the steps", where)
            return
        if attempt.ended < earliest:
            earliest, of_version = attempt.ended, version


def _is_allowed(kind: str, outcome: str) -> bool:
    if outcome in REFUSALS or outcome == "CommitStateUnknown":
        return True
    return kind in SCHEMA_STEPS and outcome in SCHEMA_REFUSALS


def _check_versions(checked: _Round) -> Model | None:
    """Compare each version, replayed from commit 0, with the model; the model of the last one."""
    model = Model()
    table = DeltaTable(str(checked.archive))
    for version, commit in enumerate(checked.commits):
        if commit.step_id in checked.attempts:
            model.apply(checked.attempts[commit.step_id].step)
        try:
            rows = _rows(table.snapshot(version))
        except DeltaError as error:
            detail = f"version {version}, by {commit.step_id}: {error}"
            checked.fail(f"a version cannot be read: {type(error).__name__}", detail)
            return None
        if not _agree(checked, f"version {version}, by {commit.step_id}", rows, model):
            return None
    return model


def _rows(snapshot: Snapshot) -> list[tuple[tuple[str, str], ...]]:
    return comparable(snapshot.scan().to_arrow().to_pylist())


def _agree(
    checked: _Round, where: str, rows: list[tuple[tuple[str, str], ...]], model: Model
) -> bool:
    expected = model.sorted_rows()
    if rows == expected:
        return True
    ids = [dict(row)["id"] for row in rows]
    wanted = {dict(row)["id"] for row in expected}
    doubled = sorted({id_ for id_ in ids if ids.count(id_) > 1})
    lost, extra = sorted(wanted - set(ids)), sorted(set(ids) - wanted)
    kinds = [("doubled", doubled), ("lost", lost), ("not deleted", extra)]
    what = next((name for name, found in kinds if found), "have other values")
    differing = [pair for pair in zip(rows, expected, strict=False) if pair[0] != pair[1]][:2]
    detail = f"{where}: doubled {doubled}, lost {lost}, extra {extra}, e.g. {differing}"
    checked.fail(f"rows {what}", detail)
    return False


def _check_latest(checked: _Round, model: Model) -> None:
    """The live table, read by its checkpoint, is what the archived commits say."""
    live, replayed = DeltaTable(str(checked.root)), DeltaTable(str(checked.archive))
    expected: set[tuple[str, str]] = set()
    for commit in checked.commits:
        # An add and a remove of one key in one commit do not occur.
        expected = (expected - commit.removes) | commit.adds
    wanted = {path for path, _ in expected}
    for name, table in (("by checkpoint", live), ("from commit 0", replayed)):
        try:
            snapshot = table.snapshot()
            files = {unquote(path) for path in snapshot.files()["path"].to_pylist()}
            rows = _rows(snapshot)
        except DeltaError as error:
            title = f"the latest version, read {name}: {type(error).__name__}"
            checked.fail(title, str(error))
            continue
        if files != wanted or snapshot.num_files != len(expected):
            detail = f"too many {files - wanted}, missing {wanted - files}"
            checked.fail(f"the files of the latest version, read {name}, differ", detail)
        _agree(checked, f"the latest version, read {name}", rows, model)
    missing = [path for path in wanted if not (checked.root / path).exists()]
    if missing:
        checked.fail("a referenced file does not exist", f"{missing}")
