"""Audits of an asset: functions and queries that judge what a run is about to commit. One that
fails and blocks leaves the table at its old version; the rows may be kept in a table beside it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import dagster as dg
import msgspec
import pyarrow as pa

from dagster_delta import clock, engines
from dagster_delta.errors import AuditFailed, InvalidArgument, TableNotFound
from dagster_delta.orchestration.metadata_keys import RawMetadata, counted
from dagster_delta.orchestration.quarantine import REJECTED_PROPERTY
from dagster_delta.orchestration.row_tables import Row, first_rows, row_table
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.operations.expectations import Expectation, check_expectations
from dagster_delta.table.transaction.staged_write import StagedWrite

if TYPE_CHECKING:
    from dagster_delta.table.read.snapshot import Snapshot

OnFailure = Literal["discard", "keep"]
AUDITS_KEY = "audits"
"""Key of the commitInfo with the result of each audit."""
_MEMORY_BYTES = 1_000_000_000
_SHOWN_ROWS = 5
_WEEK = dt.timedelta(days=7)


class Audit(msgspec.Struct, frozen=True):
    """A check of what a run is about to commit.

    Raises:
        InvalidArgument: a part has none of its values.
    """

    check: Callable[[StagedWrite], object] | str
    """A function of the `StagedWrite`, which returns an `AssetCheckResult`, or whether it passes;
    None is a pass. Or a query that returns the failing rows, over `{rows}`, the new rows,
    `{table}`, the table as it would be, and `{before}`, the table as it is."""
    name: str = ""
    """Its name in metadata and checks; that of the function by default."""
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR
    """Of a failure: ERROR leaves the table as it is, WARN is reported. An `AssetCheckResult` has
    its own."""
    on_failure: OnFailure = "discard"
    """What happens to the new rows if it blocks: `keep` puts them into `<table>_rejected`."""
    keep_for: dt.timedelta = _WEEK
    """How long they are kept there; a later run deletes them."""
    engine: Literal["arrow", "spark"] = "arrow"
    """Of a query: DuckDB's SQL in this process, or Spark SQL."""

    def __post_init__(self) -> None:
        if not callable(self.check) and not isinstance(self.check, str):
            raise InvalidArgument(f"an audit is a function or a query, not {self.check!r}")
        for option, choices in (("on_failure", OnFailure), ("engine", Literal["arrow", "spark"])):
            if (value := getattr(self, option)) not in get_args(choices):
                allowed = ", ".join(map(repr, get_args(choices)))
                raise InvalidArgument(f"{option} of an audit is one of {allowed}, not {value!r}")
        if not self.check_name.isidentifier():
            raise InvalidArgument(
                f"the name of an audit is that of an asset check too, not {self.check_name!r}: "
                "give it a name of letters, digits and underscores"
            )

    @property
    def check_name(self) -> str:
        """Its name, or that of its function."""
        return self.name or getattr(self.check, "__name__", "")


class _DescribedAudit(dict[str, object]):
    """An audit as the JSON object that Dagster shows; the audit itself goes along."""

    audit: Audit


def delta_metadata(
    *,
    expectations: Sequence[Expectation] = (),
    audits: Sequence[Audit | Callable[[StagedWrite], object]] = (),
) -> dict[str, list[dict[str, object]]]:
    """Metadata of an asset, as JSON: its `expectations` and `audits`, to be merged into the rest.

    The same values in the metadata as they are work, too, with Dagster's warning that it will
    refuse metadata that is no JSON.

    Args:
        expectations: conditions on the rows.
        audits: what judges the rows before they are committed; functions need no `Audit`.

    Raises:
        InvalidArgument: two of one kind have one name.
    """
    described = {
        "expectations": [msgspec.structs.asdict(one) for one in check_expectations(expectations)],
        "audits": [_describe_audit(audit) for audit in audits_of(audits)],
    }
    return {name: values for name, values in described.items() if values}


def _describe_audit(audit: Audit) -> dict[str, object]:
    is_query = isinstance(audit.check, str)
    found = _DescribedAudit(name=audit.check_name, severity=audit.severity.value)
    # Without its audit, a function is refused, not run as a query.
    found["check" if is_query else "function"] = audit.check if is_query else audit.check_name
    found.audit = audit
    return found


class AuditResult(msgspec.Struct, frozen=True):
    """What an audit has found."""

    audit: Audit
    passed: bool
    severity: dg.AssetCheckSeverity
    description: str
    metadata: RawMetadata = msgspec.field(default_factory=dict)

    @property
    def blocks(self) -> bool:
        """Whether nothing may be committed."""
        return not self.passed and self.severity == dg.AssetCheckSeverity.ERROR

    def evaluation(
        self, asset_key: dg.AssetKey, further: RawMetadata | None = None
    ) -> dg.AssetCheckEvaluation:
        """The result of the asset check of its name, with further metadata."""
        return dg.AssetCheckEvaluation(
            asset_key=asset_key,
            check_name=self.audit.check_name,
            passed=self.passed,
            severity=self.severity,
            description=self.description,
            metadata={**(further or {}), **self.metadata},
        )


def audits_of(given: Sequence[object]) -> tuple[Audit, ...]:
    """Audits, which may be given as functions, or as mappings of their fields.

    Raises:
        InvalidArgument: two have one name, or one is invalid.
    """
    found: dict[str, Audit] = {}
    fields = {field.name for field in msgspec.structs.fields(Audit)}
    for each in given:
        item = each.audit if isinstance(each, _DescribedAudit) else each
        if isinstance(item, Mapping) and (set(item) - fields or "check" not in item):
            raise InvalidArgument(f"an audit has check, and if needed {', '.join(sorted(fields))}")
        audit = item if isinstance(item, Audit) else None
        if audit is None:
            values: Any = item if isinstance(item, Mapping) else {"check": item}
            audit = Audit(**values)
        if audit.check_name in found:
            raise InvalidArgument(f"two audits have the name {audit.check_name!r}")
        found[audit.check_name] = audit
    return tuple(found.values())


class WriteAudits:
    """The audits of one write, as the table calls them."""

    def __init__(
        self, audits: Sequence[Audit], rejected: RejectedRows, masked: Collection[str]
    ) -> None:
        self._audits, self._rejected, self._masked = audits, rejected, masked
        self.results: tuple[AuditResult, ...] = ()
        """Of the last call."""

    def __call__(self, staged: StagedWrite) -> Mapping[str, object]:
        """What the commit records. Raises AuditFailed if one blocks."""
        keeps = [audit.keep_for for audit in self._audits if audit.on_failure == "keep"]
        if keeps:
            self._rejected.expire(max(keeps))
        self.results = tuple(_run_audit(audit, staged, self._masked) for audit in self._audits)
        blocking = [result for result in self.results if result.blocks]
        if not blocking:
            return {AUDITS_KEY: [_spell_result(result) for result in self.results]}
        kept = ""
        if any(each.audit.on_failure == "keep" for each in blocking):
            self._rejected.keep(staged.rows, [result.audit.check_name for result in blocking])
            kept = f"; its rows are in {self._rejected.uri}"
        problems = "; ".join(f"{each.audit.check_name}: {each.description}" for each in blocking)
        error = AuditFailed(
            f"{counted(len(blocking), 'audit')} failed, so that nothing was committed: {problems}"
            f"{kept}",
            table=staged.table.store.location.uri,
        )
        error.results = self.results
        raise error


def _spell_result(result: AuditResult) -> dict[str, object]:
    severity = result.severity.value
    return {"name": result.audit.check_name, "passed": result.passed, "severity": severity}


def _run_audit(audit: Audit, staged: StagedWrite, masked: Collection[str]) -> AuditResult:
    if isinstance(audit.check, str):
        return _run_query_audit(audit, audit.check, staged, masked)
    found = audit.check(staged)
    if isinstance(found, dg.AssetCheckResult):
        metadata: Any = dict(found.metadata or {})
        described = found.description or _describe(found.passed)
        return AuditResult(audit, found.passed, found.severity, described, metadata)
    if found is not None and not isinstance(found, bool):
        raise InvalidArgument(
            f"the audit {audit.check_name} returned {type(found).__name__}: return an "
            "AssetCheckResult, or whether it passes"
        )
    passed = found is not False
    return AuditResult(audit, passed, audit.severity, _describe(passed))


def _describe(passed: bool) -> str:
    return "passed" if passed else "it returned False"


def _run_query_audit(
    audit: Audit, sql: str, staged: StagedWrite, masked: Collection[str]
) -> AuditResult:
    snapshots = {"rows": staged.rows, "table": staged.table}
    if staged.before is not None:
        snapshots["before"] = staged.before
    try:
        query = sql.format_map({name: f'"{name}"' for name in snapshots})
    except (KeyError, ValueError, IndexError) as error:
        raise InvalidArgument(
            f"the query of the audit {audit.check_name} has {error} in braces: it reads {{rows}}, "
            "{table} and, if there is a table, {before}"
        ) from error
    count, rows = 0, list[Row]()
    for batch in _query_batches(audit, sql, query, snapshots):
        rows += first_rows([batch], _SHOWN_ROWS - len(rows)) if len(rows) < _SHOWN_ROWS else []
        count += batch.num_rows
    metadata: RawMetadata = {"delta/violations": count}
    if rows:
        metadata["delta/failing_rows"] = row_table(rows, masked)
    described = f"the query returned {counted(count, 'row')}" if count else "no row fails"
    return AuditResult(audit, not count, audit.severity, described, metadata)


def _query_batches(
    audit: Audit, sql: str, query: str, snapshots: Mapping[str, Snapshot]
) -> Iterator[pa.RecordBatch]:
    if audit.engine == "spark":
        session = engines.active_spark_session()
        if session is None:
            raise InvalidArgument(
                f"the audit {audit.check_name} is for Spark, and there is no active session"
            )
        frames: dict[str, Any] = {
            name: snapshot.scan().to_spark(session) for name, snapshot in snapshots.items()
        }
        rows = engines.with_nullable_parts(session.sql(sql, **frames))
        yield from rows.toArrow().to_batches()
        return
    scans = {name: snapshot.scan() for name, snapshot in snapshots.items()}
    # By attribute: the parser is loaded when a query runs.
    yield from engines.run_query(query, scans, name=audit.check_name, memory_bytes=_MEMORY_BYTES)


class RejectedRows(msgspec.Struct, frozen=True):
    """The table beside that of an asset with the rows of writes that an audit has stopped."""

    uri: str
    owner: str
    storage_options: Mapping[str, object]
    commit_info: Mapping[str, object]
    load_id: str
    """Identifies the write over its attempts."""

    # Storage options may hold secrets.
    def __repr__(self) -> str:
        return f"RejectedRows({self.uri!r})"

    def keep(self, rows: Snapshot, audits: Sequence[str]) -> None:
        """Put the rows of a write there, in place of those of its earlier attempts."""
        now = dt.datetime.fromtimestamp(clock.now_ms() / 1000, dt.UTC)
        added = {
            "_audits": pa.scalar(list(audits), pa.list_(pa.string())),
            "_run_id": pa.scalar(self.commit_info.get("dagsterRunId"), pa.string()),
            "_rejected_at": pa.scalar(now, pa.timestamp("us", "UTC")),
            "_load_id": pa.scalar(self.load_id, pa.string()),
        }
        reader = rows.scan().to_batches()
        schema = reader.schema
        for name, value in added.items():
            schema = schema.append(pa.field(name, value.type))

        def batches() -> Iterator[pa.RecordBatch]:
            for batch in reader:
                columns = [pa.repeat(value, batch.num_rows) for value in added.values()]
                yield pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=schema)

        table = DeltaTable(self.uri, storage_options=self.storage_options, must_exist=False)
        table.overwrite(
            pa.RecordBatchReader.from_batches(schema, batches()),
            where=f"_load_id = '{self.load_id}'",
            schema_mode="merge",
            commit_info=self.commit_info,
            properties={REJECTED_PROPERTY: self.owner},
            description=f"Rows that audits of {self.owner} have stopped.",
        )

    def expire(self, after: dt.timedelta) -> None:
        """Delete rows that are older than a time.

        Raises:
            InvalidArgument: the table there has another purpose, so that no row can be kept in it.
        """
        table = DeltaTable(self.uri, storage_options=self.storage_options, must_exist=False)
        try:
            properties = table.snapshot().metadata.configuration
        except TableNotFound:
            return
        if REJECTED_PROPERTY not in properties:
            raise InvalidArgument(
                f"audits of {self.owner} keep rows in the table {self.uri}, and the one there has "
                f"another purpose (it lacks the property {REJECTED_PROPERTY}): give one of both "
                "another location by the metadata schema or table_name",
                table=self.uri,
            )
        oldest = dt.datetime.fromtimestamp(clock.now_ms() / 1000, dt.UTC) - after
        table.delete(f"_rejected_at < TIMESTAMP '{oldest.isoformat()}'")
