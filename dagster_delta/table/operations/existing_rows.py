"""What a schema change requires of existing rows: a check of them, or new files.

A change that rewrites a whole table is one commit. Until then, a journal beside the log records the
files it has written. After a crash the same change finds them there and continues. The directory is
hidden: readers and VACUUM ignore it.

The journal is shared by every run of the same change, and two of them may run at the same time. So
any of them may commit a file that an entry names, and none of them deletes it: VACUUM deletes
unreferenced files.

Spec: Add File and Remove File (dataChange); Column Invariants; CHECK Constraints; Default Columns.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.engines.engine import Engine
from dagster_delta.engines.plans import ReadPlan
from dagster_delta.engines.statements.row_tracking import keep_row_ids
from dagster_delta.errors import ConstraintViolation, DeltaError
from dagster_delta.protocol.actions import AddFile
from dagster_delta.protocol.features.column_values import ColumnExpression, ColumnValues
from dagster_delta.protocol.log.replay import keys_of
from dagster_delta.protocol.statistics.skipping import skip_files
from dagster_delta.protocol.values.arrow_columns import string_column
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.protocol.wire_values import DECODING_ERRORS
from dagster_delta.sql.expressions import parse_expression
from dagster_delta.sql.filters import at_moment
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.operations.write_planning import write_spec
from dagster_delta.table.read.file_planner import read_plan
from dagster_delta.table.transaction.file_actions import split_by_size, tombstones
from dagster_delta.table.transaction.transaction import Transaction

if TYPE_CHECKING:
    from dagster_delta.evolution.plan import SchemaChangePlan
    from dagster_delta.table.read.snapshot import Snapshot

_LOG = logging.getLogger(__name__)

_JOURNALS = "_dagster_delta/rewrites"
_REUSED_FOR_MS = 24 * 60 * 60 * 1000
"""How long after it was written a file may still be committed by another run of the change."""
_MAX_EXAMPLES = 5
_MAX_EXAMPLE_LENGTH = 300


@dataclass(slots=True)
class RowValidation:
    """Checks for existing rows that a change would not allow; caches its results."""

    engine: Engine
    _seen: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    """Keys of the files whose rows satisfy a constraint, by constraint."""

    def run(self, snapshot: Snapshot, plan: SchemaChangePlan) -> None:
        """Check that every row of a version satisfies every constraint of a plan.

        Files whose statistics prove it are not read. A broken constraint is a ConstraintViolation
        with a few such rows as examples.
        """
        files = snapshot.live_files()
        keys = keys_of(files["path"], files["deletion_vector"])
        for check in plan.checks:
            # The newline ends a comment at the end of the text.
            sql = f"({check.sql}\n) IS NOT TRUE"
            broken = parse_expression(sql, plan.after.schema, self.engine.time_zone)
            seen = self._seen.setdefault((check.name, check.sql), set())
            is_new = pc.invert(pc.is_in(keys, value_set=string_column(sorted(seen))))
            partitions, predicate = files["partition_values"], broken.to_predicate()
            skipped = skip_files(predicate, plan.after, partitions, snapshot.statistics)
            suspicious = files.filter(pc.and_(skipped.may_match, is_new))
            read = read_plan(snapshot, suspicious, broken, plan.after)
            examples = self.engine.first_rows(read, _MAX_EXAMPLES) if suspicious.num_rows else ()
            if examples:
                raise ConstraintViolation(
                    f"the table holds rows that break {check.name} ({check.sql}): correct or "
                    "delete them first",
                    table=snapshot.store.location.uri,
                    version=snapshot.version,
                    examples=tuple(repr(row)[:_MAX_EXAMPLE_LENGTH] for row in examples),
                )
            seen.update(keys.to_pylist())


@dataclass(slots=True)
class ExistingFiles:
    """Rewrites files of a table so that their rows hold the defaults of new columns.

    The next attempt, and other runs of the same change, reuse the files of an attempt: files that
    no concurrent commit has changed are not rewritten twice. As those runs may commit them at any
    time, no file is deleted here (see `RewriteJournal`).
    """

    engine: Engine
    on_progress: Callable[[int, int], None] | None = None
    _journal: RewriteJournal | None = field(default=None, init=False)
    _done: list[JournalEntry] = field(default_factory=list, init=False)
    _moment_ms: int = field(default=0, init=False)

    def stage(
        self, transaction: Transaction, snapshot: Snapshot, plan: SchemaChangePlan, files: pa.Table
    ) -> None:
        """Rewrite the files that are not rewritten yet, and stage that the new files replace the
        old ones.
        """
        self._open_journal(snapshot, plan, transaction.clock())
        keys = keys_of(files["path"], files["deletion_vector"])
        # Entries from which another commit has removed a file are forgotten.
        live = set(keys.to_pylist())
        self._done = [entry for entry in self._done if entry.sources <= live]
        done = frozenset(key for entry in self._done for key in entry.sources)
        left = pc.invert(pc.is_in(keys, value_set=string_column(sorted(done))))
        left_files = files.filter(left)
        sizes: Sequence[int] = left_files["size_bytes"].to_pylist()
        max_bytes = self.engine.rewrite_batch_bytes
        for batch in split_by_size(range(len(sizes)), sizes.__getitem__, max_bytes):
            self._write_again(snapshot, plan, left_files.slice(batch[0], len(batch)))
            if self.on_progress is not None:
                written = sum(len(entry.sources) for entry in self._done)
                self.on_progress(written, files.num_rows)
        transaction.stage_readded(
            msgspec.structs.replace(add, data_change=False)
            for entry in self._done
            for add in entry.adds
        )
        transaction.stage_removed(tombstones(files, transaction.clock(), data_change=False))
        transaction.declare_row_ids_kept()

    def _open_journal(self, snapshot: Snapshot, plan: SchemaChangePlan, now_ms: int) -> None:
        change = msgspec.json.encode(
            [
                plan.after.metadata,
                dict(plan.fills),
                [(check.name, check.sql) for check in plan.checks],
                plan.materializes_defaults,
            ],
            order="deterministic",
        ).decode()
        if self._journal is not None and self._journal.change == change:
            return
        self.forget()
        self._journal = RewriteJournal(snapshot.store, change)
        retention_ms = snapshot.configuration.properties.deleted_file_retention_ms
        reused_ms = min(_REUSED_FOR_MS, retention_ms // 2)
        self._done = self._journal.load(since_ms=now_ms - reused_ms)
        # A default with the current time is the same in all rows, in every run and at any time.
        self._moment_ms = self._done[0].moment_ms if self._done else now_ms

    def _write_again(self, snapshot: Snapshot, plan: SchemaChangePlan, files: pa.Table) -> None:
        after = plan.after
        moment = dt.datetime.fromtimestamp(self._moment_ms / 1000, dt.UTC)
        fills = plan.fills.items()
        defaults = tuple(ColumnExpression(name, at_moment(sql, moment)) for name, sql in fills)
        read = ReadPlan(
            store=snapshot.store,
            version=snapshot.version,
            # Columns that files lack are read as long as the log defines them.
            configuration=plan.before if plan.materializes_defaults else after,
            files=files,
            columns=tuple(name for name in after.schema.names if name not in plan.fills),
        )
        spec = write_spec(
            after,
            snapshot.store.location,
            constraints=plan.checks,
            # Rows in the table have passed the constraints so far.
            check_rows=False,
            values=ColumnValues(defaults=defaults),
        )
        read, spec = keep_row_ids(read, spec)
        written = self.engine.write(self.engine.read(read), spec, store=snapshot.store)
        entry = JournalEntry(
            sources=frozenset(keys_of(files["path"], files["deletion_vector"]).to_pylist()),
            adds=written.files,
            num_rows=written.num_rows,
            moment_ms=self._moment_ms,
        )
        self._done.append(entry)
        assert self._journal is not None  # noqa: S101  opened before
        self._journal.record(entry)

    @property
    def num_rows(self) -> int:
        """Rows of the files written for the latest attempt."""
        return sum(entry.num_rows for entry in self._done)

    def forget(self) -> None:
        """Start over, and prevent other runs from finding the files."""
        if self._journal is not None:
            self._journal.clear()
        self._done = []


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Files that were rewritten together."""

    sources: frozenset[str]
    """Keys of the files they replace, as `keys_of` spells them."""
    adds: tuple[AddFile, ...]
    """The new files, none of them referenced yet."""
    num_rows: int
    """Rows in the new files."""
    moment_ms: int
    """The current time used in the defaults of their rows, in milliseconds since the epoch."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Decoded paths of the new files."""
        return tuple(decode_path(add.path) for add in self.adds)


@dataclass(frozen=True, slots=True)
class RewriteJournal:
    """The entries of one change."""

    store: ObjectStore
    change: str
    new_id: Callable[[], str] = lambda: str(uuid.uuid4())

    @property
    def directory(self) -> str:
        """Directory of the entries."""
        digest = hashlib.sha256(self.change.encode()).hexdigest()
        return f"{_JOURNALS}/{digest[:32]}"

    def load(self, *, since_ms: int) -> list[JournalEntry]:
        """Entries that one commit may use together: their files exist, and no two of them replace
        the same file or have defaults of different times.

        Entries before `since_ms`, in milliseconds since the epoch, are ignored, because VACUUM may
        be about to delete their files.
        """
        found: list[JournalEntry] = []
        replaced: set[str] = set()
        for meta in list(self.store.list_from(self.directory)):
            entry = self._decode(meta.path) if meta.modified_ms >= since_ms else None
            if entry is None or not replaced.isdisjoint(entry.sources):
                continue
            if found and entry.moment_ms != found[0].moment_ms:
                continue
            if all(map(self.store.head, entry.paths)):
                found.append(entry)
                replaced |= entry.sources
        return found

    def _decode(self, path: str) -> JournalEntry | None:
        try:
            return msgspec.json.decode(self.store.read(path), type=JournalEntry)
        except (FileNotFoundError, *DECODING_ERRORS):
            return None

    def record(self, entry: JournalEntry) -> None:
        """Record files that have been written. Raises StorageFailure."""
        self.store.put(f"{self.directory}/{self.new_id()}.json", msgspec.json.encode(entry))

    def clear(self) -> None:
        """Delete the entries of the change, as far as the store allows. The files that it wrote
        remain.
        """
        try:
            self.store.delete([meta.path for meta in self.store.list_from(self.directory)])
        except (DeltaError, OSError) as error:
            _LOG.warning(
                "could not clear %s of %s: %s", self.directory, self.store.location.uri, error
            )
