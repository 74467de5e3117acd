"""What a statement has to pass before it is committed: expectations of its rows, which are counted
while they are written, and an audit of what it would commit. Rows that are set aside are committed
to the table beside just before.

The table beside comes first: if the process ends between the two commits, the next attempt replaces
the rows of this one. After an error with which nothing was committed, they are removed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dagster_delta.engines.plans import ObservedRows as ObservedRows
from dagster_delta.engines.plans import RowRules
from dagster_delta.engines.plans import SetAside as SetAside
from dagster_delta.engines.plans import WriteResult as WriteResult
from dagster_delta.errors import CommitStateUnknown, DeltaError, InvalidArgument, StorageFailure
from dagster_delta.sql.expectation import Expectation as Expectation
from dagster_delta.sql.expectation import OnViolation as OnViolation
from dagster_delta.sql.expectation import check_expectations as check_expectations
from dagster_delta.table.transaction.commit_result import RowQuarantine as RowQuarantine

if TYPE_CHECKING:
    from dagster_delta.table.transaction.retries import StatementOptions
    from dagster_delta.table.transaction.staged_write import StagedWrite
    from dagster_delta.table.transaction.transaction import Transaction

EXPECTATIONS_KEY = "expectations"
"""Key of the commitInfo with the counts of each expectation."""


class ExpectedRows:
    """The expectations of one statement, over all of its attempts.

    Raises:
        InvalidArgument: two have one name, or rows cannot be set aside.
    """

    def __init__(self, options: StatementOptions, *, table: str) -> None:
        self._expectations = check_expectations(options.expectations)
        self._quarantine, self._audit = options.quarantine, options.audit
        self._table = table
        self._rules: RowRules | None = None
        self._observed: ObservedRows | None = None
        self._is_committed = False

    def rules(self) -> RowRules | None:
        """What an engine counts; None if nothing is expected."""
        if self._rules is None and self._expectations:
            aside = None
            if any(known.on_violation == "quarantine" for known in self._expectations):
                if self._quarantine is None:
                    raise InvalidArgument(
                        'an expectation with on_violation="quarantine" needs the table that its '
                        "rows go to: pass quarantine",
                        table=self._table,
                    )
                aside = self._quarantine.plan_rows()
            self._rules = RowRules(self._expectations, aside)
        return self._rules

    def take(self, observed: ObservedRows | None) -> None:
        """Take what an attempt has observed. Raises ExpectationFailed if that fails the write; its
        files in the table beside are deleted then.
        """
        self._observed, self._is_committed = observed, False
        if observed is None:
            return
        # Imported late, here and below: few writes expect anything.
        from dagster_delta.engines.statements.expectations import refuse_failures

        try:
            refuse_failures(self._expectations, observed, table=self._table)
        except Exception:
            self.forget()
            raise

    def forget(self) -> None:
        """Delete the files of an attempt whose rows are written again."""
        if not self._is_committed and self._observed is not None:
            from dagster_delta.engines.statements.expectations import delete_rows_aside

            delete_rows_aside(self._rules, self._observed)
        self._observed = None

    def commit_rows_aside(self) -> None:
        """Commit the rows that are set aside, once for their files. The statement is committed
        next.
        """
        if self._observed is None or self._rules is None or self._rules.set_aside is None:
            return
        if not self._is_committed:
            assert self._quarantine is not None  # noqa: S101  it planned the files
            self._quarantine.replace_written(self._observed)
            self._is_committed = True

    @contextmanager
    def withdrawn_on_errors(self) -> Iterator[None]:
        """Removes the rows that were set aside after an error with which the statement is surely
        not committed.
        """
        try:
            yield
        except (CommitStateUnknown, StorageFailure):
            raise
        except DeltaError:
            if not self._is_committed:
                self.forget()
            elif self._quarantine is not None:
                self._quarantine.replace_written(ObservedRows())
            raise

    def prepare_commits_of(self, transaction: Transaction) -> None:
        """Have a transaction audited, and the rows that are set aside committed just before it."""
        audit = self._audit

        def prepare(stage: Callable[[], StagedWrite]) -> Mapping[str, object]:
            noted = {} if audit is None else (audit(stage()) or {})
            self.commit_rows_aside()
            return noted

        if audit is not None or self._expectations:
            transaction.prepare = prepare
        transaction.is_audited = audit is not None

    @property
    def observed(self) -> ObservedRows | None:
        """What the present attempt has observed; None if nothing is expected."""
        return self._observed

    def metrics(self) -> dict[str, int]:
        """The operation metrics of the rows that were not written."""
        observed = self._observed
        if observed is None:
            return {}
        counts = {
            "numDroppedRows": observed.num_dropped,
            "numQuarantinedRows": observed.num_set_aside,
        }
        return {name: count for name, count in counts.items() if count}

    def commit_info(self, given: Mapping[str, object] | None) -> Mapping[str, object] | None:
        """The commitInfo of a user with the counts of each expectation."""
        if self._observed is None:
            return given
        return {**(given or {}), EXPECTATIONS_KEY: spell_counts(self._expectations, self._observed)}


def spell_counts(
    expectations: Sequence[Expectation], observed: ObservedRows
) -> list[dict[str, object]]:
    """The counts of each expectation, by the names that Databricks' event log has for them."""
    return [
        {
            "name": known.name,
            "condition": known.condition,
            "onViolation": known.on_violation,
            "passedRecords": observed.num_rows - observed.violations.get(known.name, 0),
            "failedRecords": observed.violations.get(known.name, 0),
        }
        for known in expectations
    ]
