"""What the UI shows of expectations and audits: metadata of the materialization, and results of
asset checks of their names. All of it is known from the write; no row is read again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence

import dagster as dg

from dagster_delta.errors import AuditFailed, ExpectationFailed
from dagster_delta.orchestration.io.asset_options import AssetOptions
from dagster_delta.orchestration.io.audits import AuditResult
from dagster_delta.orchestration.io.run_facts import current_execution
from dagster_delta.orchestration.metadata_keys import DETAILS, RawMetadata, counted, shown
from dagster_delta.orchestration.row_tables import Row, row_table
from dagster_delta.table.operations.expectations import Expectation, ObservedRows, spell_counts
from dagster_delta.table.read.snapshot import Snapshot

VIOLATIONS_KEY = "delta/violations"
ROWS_KEY = "delta/failing_rows"


def audit_metadata(results: Sequence[AuditResult]) -> Mapping[str, object]:
    """Metadata of a materialization that was audited."""
    if not results:
        return {}
    rows = [
        {"name": found.audit.check_name, "passed": found.passed, "description": found.description}
        for found in results
    ]
    return {"delta/audits": row_table(rows, ())}


def expectation_metadata(
    expectations: Sequence[Expectation], observed: ObservedRows | None, *, also_set_aside: int = 0
) -> Mapping[str, object]:
    """Metadata of a materialization; `also_set_aside` rows went to the quarantine for other
    reasons.
    """
    if observed is None:
        return {}
    return {
        "delta/expectations": row_table(spell_counts(expectations, observed), ()),
        "delta/dropped_rows": observed.num_dropped,
        "delta/quarantined_rows": observed.num_set_aside + also_set_aside,
    }


def report_evaluations(
    asset_key: dg.AssetKey,
    options: AssetOptions,
    observed: ObservedRows | None,
    audits: Sequence[AuditResult],
    snapshot: Snapshot,
) -> None:
    """Report the result of each expectation and audit as that of an asset check of its name, at the
    version that was written, if this is a step of a run.
    """
    execution = current_execution()
    if execution is None:
        return
    # A restore to the latest version whose checks passed finds the version here.
    of_version = {"delta/version": snapshot.version, DETAILS: {"table_id": snapshot.metadata.id}}
    checked = shown(of_version)
    for result in audits:
        execution.log_event(result.evaluation(asset_key, checked))
    for expectation in options.expectations if observed is not None else ():
        assert observed is not None  # noqa: S101  mypy does not see it
        masked = options.masked_columns
        found = _make_evaluation(asset_key, expectation, observed, masked, checked)
        execution.log_event(found)


def report_failure(
    asset_key: dg.AssetKey, options: AssetOptions, error: ExpectationFailed | AuditFailed
) -> None:
    """The same for a write that has failed."""
    execution = current_execution()
    if execution is None:
        return
    if isinstance(error, AuditFailed):
        found = [r.evaluation(asset_key) for r in error.results if isinstance(r, AuditResult)]
    else:
        masked = options.masked_columns
        found = [
            _make_evaluation(asset_key, known, error, masked) for known in options.expectations
        ]
    for evaluation in found:
        # Dagster drops what a step has logged in the call that fails it.
        execution.instance.report_runless_asset_event(evaluation)


def _make_evaluation(
    asset_key: dg.AssetKey,
    expectation: Expectation,
    observed: ObservedRows | ExpectationFailed,
    masked: Collection[str],
    further: RawMetadata | None = None,
) -> dg.AssetCheckEvaluation:
    count = observed.violations.get(expectation.name, 0)
    texts = (
        observed.rows_by_name if isinstance(observed, ExpectationFailed) else observed.examples
    ).get(expectation.name, ())
    return dg.AssetCheckEvaluation(
        asset_key=asset_key,
        check_name=expectation.name,
        passed=not count,
        severity=check_severity(expectation),
        description=describe_counts(expectation, count, observed.num_rows),
        metadata={**(further or {}), VIOLATIONS_KEY: count, **_failing_rows(texts, masked)},
    )


def check_severity(expectation: Expectation) -> dg.AssetCheckSeverity:
    """How severe a violation is: only `fail` stops anything."""
    is_error = expectation.on_violation == "fail"
    return dg.AssetCheckSeverity.ERROR if is_error else dg.AssetCheckSeverity.WARN


def describe_counts(expectation: Expectation, count: int, num_rows: int) -> str:
    """The result of an expectation in one sentence."""
    if not count:
        return f"{counted(num_rows, 'row')} written: {expectation.condition} holds for each"
    deeds = {
        "warn": "written all the same",
        "drop": "not written",
        "fail": "nothing was written",
        "quarantine": "set aside",
    }
    return (
        f"{count:,} of {counted(num_rows, 'row')} violate {expectation.condition}: "
        f"{deeds[expectation.on_violation]}"
    )


def _failing_rows(texts: Sequence[str], masked: Collection[str]) -> RawMetadata:
    if not texts:
        return {}
    rows: Iterator[Row] = (json.loads(text) for text in texts)
    return {ROWS_KEY: row_table(list(rows), masked)}
