"""What a schema change requires of existing rows: a check of them, or new files; and which files
are from before a change: with deleted rows, dropped columns or older types, or without new columns.

A change that rewrites a whole table is one commit. Until then, a journal beside the log records the
files it has written. After a crash the same change finds them there and continues. The directory is
hidden: readers and VACUUM ignore it.

The journal is shared by every run of the same change, and two of them may run at the same time. So
any of them may commit a file that an entry names, and none of them deletes it: VACUUM deletes
unreferenced files.

Spec: Add File and Remove File (dataChange); Column Invariants; CHECK Constraints; Default Columns;
Deletion Vectors; Column Mapping; Type Widening.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Self, get_args

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.engines.engine import Engine
from dagster_delta.engines.footers import map_footers, may_lack, num_steps_found
from dagster_delta.engines.statements.row_tracking import keep_row_ids
from dagster_delta.errors import (
    MAX_EXAMPLES,
    CommitStateUnknown,
    ConstraintViolation,
    DeltaError,
    InvalidArgument,
    StorageFailure,
)
from dagster_delta.protocol.actions import AddFile
from dagster_delta.protocol.features.column_mapping import physical_name
from dagster_delta.protocol.features.column_values import ColumnExpression, ColumnValues
from dagster_delta.protocol.features.existing_defaults import fields_with_existing_default
from dagster_delta.protocol.features.row_tracking import tracked_configuration
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.features.type_widening import type_changes
from dagster_delta.protocol.log.replay import keys_of
from dagster_delta.protocol.schema import (
    ArrayType,
    DataType,
    MapType,
    StructType,
    fold_name,
    walk_fields,
)
from dagster_delta.protocol.values.arrow_columns import boolean_column, string_column
from dagster_delta.protocol.values.arrow_schema import to_arrow_type
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.protocol.wire_values import DECODING_ERRORS
from dagster_delta.split_by_size import split_by_size
from dagster_delta.sql.expressions import parse_expression
from dagster_delta.sql.filters import at_moment
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.log.columns import total_bytes
from dagster_delta.table.operations.write_planning import write_spec
from dagster_delta.table.read.file_planner import CandidateFiles, check_no_row_lost, read_plan
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.transaction.file_actions import tombstones
from dagster_delta.table.transaction.transaction import Transaction

if TYPE_CHECKING:
    from dagster_delta.evolution.plan import SchemaChangePlan
    from dagster_delta.protocol.table_properties import ColumnMappingMode

_LOG = logging.getLogger(__name__)

_JOURNALS = "_dagster_delta/rewrites"
_REUSED_FOR_MS = 24 * 60 * 60 * 1000
"""How long after it was written a file may still be committed by another run of the change."""


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
            new = files.filter(pc.invert(pc.is_in(keys, value_set=string_column(sorted(seen)))))
            suspicious = CandidateFiles.among(new, plan.after, broken.typed).files
            read = read_plan(snapshot, suspicious, broken, plan.after)
            examples = self.engine.first_rows(read, MAX_EXAMPLES) if suspicious.num_rows else ()
            if examples:
                raise ConstraintViolation(
                    f"the table holds rows that break {check.name} ({check.sql}): correct or "
                    "delete them first",
                    table=snapshot.store.location.uri,
                    version=snapshot.version,
                    examples=tuple(map(repr, examples)),
                )
            seen.update(keys.to_pylist())


@dataclass(slots=True)
class ExistingFiles:
    """Rewrites files of a table: their rows get the defaults of new columns, or stay as they are
    without a feature.

    The next attempt, and other runs of the same change, reuse the files of an attempt: files that
    no concurrent commit has changed are not rewritten twice. As those runs may commit them at any
    time, no file is deleted here (see `RewriteJournal`).

    A context manager: at the end it prevents other runs from finding the files, unless a store that
    failed or a crash lets the change be called again.
    """

    engine: Engine
    on_progress: Callable[[int, int], None] | None = None
    num_files: int = field(default=0, init=False)
    """Files that the latest attempt replaces."""
    size_bytes: int = field(default=0, init=False)
    """Size of those files."""
    _journal: RewriteJournal | None = field(default=None, init=False)
    _done: list[JournalEntry] = field(default_factory=list, init=False)
    _moment_ms: int = field(default=0, init=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        is_final = isinstance(error, DeltaError) and not isinstance(
            error, StorageFailure | CommitStateUnknown
        )
        if error is None or is_final:
            self.forget()

    def stage(
        self, transaction: Transaction, snapshot: Snapshot, plan: SchemaChangePlan, files: pa.Table
    ) -> None:
        """Rewrite the files that are not rewritten yet, and stage that the new files replace the
        old ones.
        """
        self._open_journal(snapshot, plan, transaction.clock())
        self.num_files, self.size_bytes = files.num_rows, total_bytes(files)
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
                plan.frees_files_of_feature,
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
        # What a feature gives to rows is read as long as the log defines it.
        read_as = plan.before if plan.frees_files_of_feature else after
        read = msgspec.structs.replace(
            read_plan(snapshot, files, None, read_as),
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
        check_no_row_lost(snapshot, files, written.num_rows)
        entry = JournalEntry(
            sources=frozenset(keys_of(files["path"], files["deletion_vector"]).to_pylist()),
            adds=written.files,
            num_rows=written.num_rows,
            moment_ms=self._moment_ms,
        )
        self._done.append(entry)
        assert self._journal is not None  # noqa: S101  opened before
        self._journal.record(entry)

    def metrics(self) -> dict[str, int | str]:
        """What the latest attempt replaces, by the names of metrics in the log."""
        return {
            "numRemovedFiles": self.num_files,
            "numRemovedBytes": self.size_bytes,
            "numOutputRows": sum(entry.num_rows for entry in self._done),
        }

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


Purge = Literal["deletion_vectors", "dropped_columns", "widened_types"]


def outdated_files(snapshot: Snapshot, files: pa.Table, purge: Collection[Purge]) -> pa.Table:
    """The files that hold something to purge."""
    if isinstance(purge, str) or not set(purge) <= set(get_args(Purge)) or not purge:
        names = ", ".join(get_args(Purge))
        raise InvalidArgument(f"purge lists what is purged, of {names}; not {purge!r}")
    chosen = [False] * files.num_rows
    if "deletion_vectors" in purge:
        chosen = files["deletion_vector"].is_valid().to_pylist()
    configuration = tracked_configuration(snapshot.configuration)
    schema, mode = configuration.schema, configuration.column_mapping_mode
    was_widened = any(type_changes(field) for _, field in walk_fields(schema))
    if "dropped_columns" in purge or ("widened_types" in purge and was_widened):
        doubtful = files.filter(boolean_column([not is_chosen for is_chosen in chosen]))
        rest = map_footers(
            snapshot.store,
            doubtful["path"].to_pylist(),
            lambda found: any(kind in purge for kind in _outdated_fields(found, schema, mode)),
        )
        left = iter(rest)
        chosen = [is_chosen or next(left) for is_chosen in chosen]
    return files.filter(boolean_column(chosen))


def _outdated_fields(
    found: Iterable[pa.Field], schema: StructType, mode: ColumnMappingMode
) -> Iterator[Purge]:
    """What fields of a file hold that those of the table do not."""
    known = {fold_name(physical_name(field, mode)): field for field in schema}
    for column in found:
        field = known.get(fold_name(column.name))
        if field is None:
            yield "dropped_columns"
        else:
            is_widened = bool(type_changes(field))
            yield from _outdated_parts(column.type, field.data_type, mode, is_widened=is_widened)


def _outdated_parts(
    found: pa.DataType, expected: DataType, mode: ColumnMappingMode, *, is_widened: bool
) -> Iterator[Purge]:
    if isinstance(expected, StructType) and pa.types.is_struct(found):
        fields = (found.field(index) for index in range(found.num_fields))
        yield from _outdated_fields(fields, expected, mode)
    elif isinstance(expected, ArrayType) and pa.types.is_list(found):
        element = expected.element_type
        yield from _outdated_parts(found.value_type, element, mode, is_widened=is_widened)
    elif isinstance(expected, MapType) and pa.types.is_map(found):
        parts = (found.key_type, expected.key_type), (found.item_type, expected.value_type)
        for part, wanted in parts:
            yield from _outdated_parts(part, wanted, mode, is_widened=is_widened)
    elif is_widened and found != to_arrow_type(expected):
        yield "widened_types"


def older_files(snapshot: Snapshot) -> pa.Table:
    """The live files that lack a column which has a default in them, as LIVE_FILE_SCHEMA."""
    schema, mode = snapshot.schema, snapshot.configuration.column_mapping_mode
    files = snapshot.live_files()
    doubtful = files.filter(may_lack(files, schema, mode))
    paths = [path for path, _ in fields_with_existing_default(schema)]

    def lacks(found: pa.Schema) -> bool:
        # A file that lacks the struct around a field has no rows with its default.
        return any(num_steps_found(found, schema, path, mode) == len(path) - 1 for path in paths)

    lacking = map_footers(snapshot.store, doubtful["path"].to_pylist(), lacks)
    return doubtful.filter(boolean_column(lacking))


def check_unknown_to_files(
    snapshot: Snapshot, after: TableConfiguration, columns: Sequence[tuple[str, ...]]
) -> None:
    """Check that no file has a column with the name of a new one.

    Under column mapping this is impossible, because the column gets a new name in files. Without
    it, a file may have columns that were never in the schema. `after` is the configuration with
    them.
    """
    paths = snapshot.live_files(["path"])["path"].to_pylist()
    schema, mode = after.schema, after.column_mapping_mode

    def holds(found: pa.Schema) -> bool:
        return any(num_steps_found(found, schema, path, mode) == len(path) for path in columns)

    found = map_footers(snapshot.store, paths, holds)
    holding = [path for path, has in zip(paths, found, strict=True) if has]
    if holding:
        names = ", ".join(".".join(path) for path in columns)
        raise InvalidArgument(
            f"{len(holding)} data files have a column called {names} that the table does not know, "
            'and would show its values instead of the default; pass existing_rows="rewrite", or '
            "set delta.columnMapping.mode = name first",
            table=snapshot.store.location.uri,
            version=snapshot.version,
            column=names,
            file=decode_path(holding[0]),
        )
