"""Evaluates the rules of a table, and of its users, on one version.

Other writers may violate a table's declarations; this finds the violating rows. A rule about single
rows is evaluated on the rows that were added since it last held.

Spec: Column Invariants; CHECK Constraints; Generated Columns.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import fields, replace

import dagster_delta.arrow_compute as pc
from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.io.audits import AUDITS_KEY
from dagster_delta.orchestration.io.expectation_report import describe_counts
from dagster_delta.orchestration.io.sql_assets import run_query
from dagster_delta.orchestration.maintenance.operations import spell_bytes
from dagster_delta.orchestration.metadata_keys import RawMetadataValue, counted, first_names
from dagster_delta.orchestration.row_tables import Row
from dagster_delta.orchestration.table_metadata import spell_time
from dagster_delta.protocol.schema import StructType, fold_name
from dagster_delta.python_values import python_rows
from dagster_delta.table.operations.expectations import EXPECTATIONS_KEY, Expectation
from dagster_delta.table.operations.health import TableHealth, table_health
from dagster_delta.table.operations.validate import (
    differing_columns,
    rows_since,
    validate_rows,
)
from dagster_delta.table.read.history import history, read_entry
from dagster_delta.table.read.scan import Scan
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.read.watch import LogCursor, last_data_change
from dagster_delta.table.slices import Slice

_COMMITS_SEARCHED = 50
_MAX_EXAMPLES = 5
_MEMORY_BYTES = 1_000_000_000

HEALTH_MEASURES = (
    *(measure.name for measure in fields(TableHealth) if measure.name != "version"),
    "average_file_bytes",
    "small_file_share",
    "deleted_share",
    "partition_skew",
)
"""Measures that may have a health threshold."""


class Finding(msgspec.Struct, frozen=True):
    """Result of a rule on a version."""

    passed: bool
    description: str
    facts: Mapping[str, RawMetadataValue] = msgspec.field(default_factory=dict)
    """Figures, by the name that the UI shows after `delta/`."""
    details: Mapping[str, RawMetadataValue] = msgspec.field(default_factory=dict)
    """Facts that are details in the UI."""
    examples: tuple[Row, ...] = ()
    """A few rows that violate the rule."""
    is_warning: bool = False
    """Whether it is only a warning if it did not pass."""


def check_declared(
    snapshot: Snapshot, last: int | None, within: Slice | None = None, *, all_rows: bool
) -> Finding:
    """Whether rows satisfy what the table declares about them: NOT NULL, CHECK constraints,
    invariants and generation expressions; only the rows since the last version at which they did,
    unless `all_rows`, and only those of a slice if there is one.
    """
    rows = replace(rows_since(snapshot, None if all_rows else last), within=within)
    result = validate_rows(rows, max_examples=_MAX_EXAMPLES)
    found = [
        f"{counted(count, 'violation')} of {rule}" for rule, count in result.violations.items()
    ]
    unknown = [f"Not evaluated: {rule}: {why}" for rule, why in result.unknown.items()]
    described = f"{counted(result.num_rules, 'constraint')} checked, of {rows.scope}: no violation"
    if not result.num_rules:
        described = "Nothing was checked: the table declares nothing about its rows"
    return Finding(
        passed=result.is_valid,
        description="; ".join([*found, *unknown]) or described,
        facts={"violations": sum(result.violations.values())},
        details={"rules": result.num_rules, "scope": rows.scope},
        examples=tuple(dict(row) for row in result.examples),
        is_warning=not result.violations,
    )


def check_expectation(snapshot: Snapshot, expectation: Expectation) -> Finding:
    """What the latest write that counted an expectation has counted. Only the log is read."""
    for entry in history(snapshot, _COMMITS_SEARCHED):
        counts = entry.commit_info.get(EXPECTATIONS_KEY)
        known = counts if isinstance(counts, list) else []
        for count in known:
            if isinstance(count, Mapping) and count.get("name") == expectation.name:
                failed, passed = int(count["failedRecords"]), int(count["passedRecords"])
                return Finding(
                    passed=not failed,
                    description=describe_counts(expectation, failed, failed + passed),
                    facts={"violations": failed},
                    details={"counted_at_version": entry.version},
                    is_warning=expectation.on_violation != "fail",
                )
    # A pass would say that rows were counted.
    return Finding(
        passed=False,
        is_warning=True,
        description=f"None of the last {_COMMITS_SEARCHED} commits has counted it: write the asset",
    )


def check_audit(snapshot: Snapshot, name: str) -> Finding:
    """The result of an audit for the latest write that it has judged. Only the log is read."""
    for entry in history(snapshot, _COMMITS_SEARCHED):
        results = entry.commit_info.get(AUDITS_KEY)
        for result in results if isinstance(results, list) else ():
            if isinstance(result, Mapping) and result.get("name") == name:
                passed, version = bool(result.get("passed")), entry.version
                described = "passed" if passed else "failed, and the rows were committed"
                return Finding(
                    passed=passed,
                    description=f"It {described} at version {version}",
                    details={"judged_at_version": version},
                    is_warning=True,
                )
    return Finding(
        passed=False,
        is_warning=True,
        description=f"It has judged none of the last {_COMMITS_SEARCHED} commits: write the asset",
    )


def check_unique(
    snapshot: Snapshot, columns: Sequence[str], within: Slice | None = None
) -> Finding:
    """Whether the combined values of some columns are unique, in the whole table or a slice; nulls
    are equal to each other.
    """
    scan = Scan(snapshot, columns) if within is None else within.scan(snapshot, columns)
    names = ", ".join(_quote_name(column) for column in scan.columns)
    count = "rows"
    while count in {fold_name(column) for column in scan.columns}:
        count += "_"
    query = (
        f"WITH repeated AS MATERIALIZED (SELECT {names}, count(*) AS {count} FROM given "
        "GROUP BY ALL HAVING count(*) > 1) "
        f"SELECT *, (SELECT count(*) FROM repeated), (SELECT sum({count}) FROM repeated) "
        f"FROM repeated ORDER BY ALL LIMIT {_MAX_EXAMPLES}"
    )
    found = run_query(query, {"given": scan}, name="delta_unique", memory_bytes=_MEMORY_BYTES)
    rows = found.read_all()
    keys, repeated = (
        (column[0].as_py() for column in rows.columns[-2:]) if rows.num_rows else (0, 0)
    )
    spelled = ", ".join(scan.columns)
    return Finding(
        passed=not keys,
        description=f"in more than one row: {counted(keys, 'key')} ({spelled}), {repeated} rows "
        "in all"
        if keys
        else f"No two rows have the same {spelled}",
        facts={"violations": keys},
        examples=tuple(python_rows(rows.select(range(rows.num_columns - 2)))),
    )


def check_row_count(
    snapshot: Snapshot, least: int | None, most: int | None, within: Slice | None = None
) -> Finding:
    """Whether the row count of the table, or of a slice, is within bounds."""
    count = snapshot.num_records if within is None else None
    if count is None:
        count = (Scan(snapshot) if within is None else within.scan(snapshot)).count()
    passed = (least is None or count >= least) and (most is None or count <= most)
    bounds = " and ".join(
        [f"at least {least}"] * (least is not None) + [f"at most {most}"] * (most is not None)
    )
    subject = "The table has" if within is None else f"{first_names(within.parts)} has"
    return Finding(passed, f"{subject} {counted(count, 'row')}; expected {bounds}", {"rows": count})


def check_freshness(snapshot: Snapshot, oldest: dt.timedelta, now: dt.datetime) -> Finding:
    """Whether rows have changed recently. Maintenance does not make a table fresh."""
    changed_ms = _last_change_ms(snapshot)
    if changed_ms is None:
        return Finding(passed=False, description="The table has never had a row")
    changed = spell_time(changed_ms)
    if not changed:
        return Finding(
            passed=False,
            description="The age of the rows is unknown: the commit that changed them last is from "
            f"{changed_ms} ms since the epoch, which is not a time that a calendar has",
        )
    age = now - dt.datetime.fromtimestamp(0, dt.UTC) - dt.timedelta(milliseconds=changed_ms)
    # The clock of the writer may be ahead.
    spelled = spell_age(max(age, dt.timedelta(0)))
    return Finding(
        passed=age <= oldest,
        description=f"Rows last changed at {changed} UTC, {spelled} ago; the limit is "
        f"{spell_age(oldest)}",
        facts={"age_seconds": age.total_seconds()},
    )


def check_schema(snapshot: Snapshot, declared: StructType, *, allow_more: bool) -> Finding:
    """Whether the table has the columns that were declared, with their types."""
    diff = differing_columns(declared, snapshot)
    lines = [f"- {column.column}: declared as {column.table_type}" for column in diff.missing]
    lines += [
        f"~ {column.column}: declared as {column.table_type}, and is {column.data_type}"
        for column in diff.retyped
    ]
    if not allow_more:
        lines += [
            f"+ {column.column}: {column.data_type} was not declared" for column in diff.added
        ]
    return Finding(
        passed=not lines,
        description="\n".join(["The columns differ from the declaration:", *lines])
        if lines
        else "The columns match the declaration",
        facts={"differences": len(lines)},
    )


def check_health(snapshot: Snapshot, most: Mapping[str, float]) -> Finding:
    """Whether the shape of the table is within bounds."""
    health = table_health(snapshot)
    beyond = exceeded_limits(health, most)
    values = {name: health_measure(health, name) for name in most}
    return Finding(
        passed=not beyond,
        description=f"The table is due for maintenance: {', '.join(beyond.values())}"
        if beyond
        else "The table needs no maintenance",
        facts={name: value for name, value in values.items() if value is not None},
    )


def exceeded_limits(health: TableHealth, most: Mapping[str, float]) -> dict[str, str]:
    """By measure: how a table exceeds its limit."""
    return {
        name: f"{name} is {_spell_value(name, value)}; the limit is {_spell_value(name, limit)}"
        for name, limit in most.items()
        if (value := health_measure(health, name)) is not None and value > limit
    }


def _spell_value(measure: str, value: float) -> str:
    return spell_bytes(value) if measure.endswith("_bytes") else f"{value:g}"


def health_measure(health: TableHealth, name: str) -> float | None:
    """The value of one of `HEALTH_MEASURES`; None if it is unknown. A list counts by its length."""
    value: float | tuple[str, ...] | None = getattr(health, name)
    return len(value) if isinstance(value, tuple) else value


def check_health_limits(names: Iterable[str]) -> None:
    """Make sure that all names are `HEALTH_MEASURES`."""
    for name in names:
        if name not in HEALTH_MEASURES:
            raise InvalidArgument(
                f"a table's health has no {name}; there are {', '.join(HEALTH_MEASURES)}"
            )


def _last_change_ms(snapshot: Snapshot) -> int | None:
    changed, commit = last_data_change(snapshot.store, LogCursor(version=snapshot.version))
    if commit is not None and commit.timestamp_ms is not None:
        return commit.timestamp_ms
    # The commit of the last change was cleaned up; files are at most as old as their rows.
    newest = [
        pc.max(batch.files["modification_time_ms"]).as_py()
        for batch in snapshot.file_batches(["modification_time_ms"])
    ]
    times = [int(time_ms) for time_ms in newest if time_ms is not None]
    if not times:
        return None
    if changed == snapshot.version:
        return max(times)
    # Compaction makes new files of old rows, which are older than the first commit that is left.
    return min(max(times), read_entry(snapshot.store, changed + 1).timestamp_ms)


def spell_age(age: dt.timedelta) -> str:
    """A duration for people, with its two largest units: `1 day 2 hours`."""
    left = round(age.total_seconds())
    parts = []
    for unit, seconds in (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1)):
        count, left = divmod(left, seconds)
        if count:
            parts.append(counted(count, unit))
    return " ".join(parts[:2]) or "0 seconds"


def _quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
