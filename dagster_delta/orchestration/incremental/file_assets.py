"""Assets of files that others put into a landing zone, each loaded once, and their sensor.

A table remembers each file as an application transaction, whose id is the location of the file and
whose version is the time at which it was modified. Rows and transactions are in one commit, so that
a crashed, repeated or concurrent run loads no file twice.

Spec: Transaction Identifiers.
"""

from __future__ import annotations

import codecs
import functools
import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import dagster as dg
import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from pydantic import Field

import dagster_delta.arrow_compute as pc
from dagster_delta.engines import to_table_types
from dagster_delta.errors import (
    ConcurrentTransaction,
    InvalidArgument,
    MetadataChanged,
    ProtocolChanged,
)
from dagster_delta.orchestration.incremental.file_rows import FileFormat, FileOptions, NewColumns
from dagster_delta.orchestration.incremental.landing_files import (
    CheckedFiles,
    LandingFiles,
    LandingZone,
    OnBadFiles,
    OnBadRows,
)
from dagster_delta.orchestration.incremental.upstream_changes import (
    key_columns,
    keys_of_rows,
    last_positions,
)
from dagster_delta.orchestration.io.asset_options import (
    NAMESPACE,
    check_choice,
    check_keys,
    names_of,
)
from dagster_delta.orchestration.io.asset_writer import (
    AssetValue,
    AssetWrite,
    NothingWritten,
    WrittenAsset,
    nothing_written,
    write_asset,
)
from dagster_delta.orchestration.io.io_manager import delta_io_manager
from dagster_delta.orchestration.io.merge_config import change_events_config, match_on
from dagster_delta.orchestration.known_fields import KnownFieldsOnly, checked_arguments
from dagster_delta.orchestration.metadata_keys import DETAILS, counted, first_names
from dagster_delta.orchestration.quarantine import Load, QuarantinedRow
from dagster_delta.orchestration.storage_options import GivenStorage, plain_options
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.spelling import arrow_schema_of
from dagster_delta.table.transaction.commit_result import (
    LOADED_FILE_PREFIX,
    NOT_FOLLOWED,
    lasting_transactions,
)
from dagster_delta.table.transaction.transaction import AppTransaction

if TYPE_CHECKING:
    from dagster_delta.table.read.snapshot import Snapshot

LoadMode: TypeAlias = Literal["append", "merge", "auto_cdc", "overwrite"]
ChangedFiles = Literal["skip", "load"]
"""What happens to a file that was replaced or modified after it was loaded."""

_MAX_NAMED = 20


class FilesConfig(KnownFieldsOnly, dg.Config):
    """Run config of an asset of files."""

    reload: list[str] = Field(
        default=[],
        description="Files to load again although they were loaded before: their locations, or "
        "patterns of their paths below the directory of the source.",
    )


@checked_arguments(dg.asset)
def delta_files_asset(
    name: str,
    source: str,
    *,
    mode: LoadMode = "append",
    keys: str | Sequence[str] = (),
    storage_options: GivenStorage | None = None,
    format: FileFormat | None = None,  # noqa: A002  the word for it
    columns: Mapping[str, str] | None = None,
    delimiter: str = ",",
    encoding: str = "utf-8",
    changed_files: ChangedFiles = "skip",
    new_columns: NewColumns | None = None,
    on_bad_rows: OnBadRows = "fail",
    on_bad_files: OnBadFiles = "fail",
    minimum_age_seconds: float = 0,
    io_manager_key: str = "io_manager",
    **asset_options: Any,
) -> dg.AssetsDefinition:
    """An asset of files that others put somewhere; each run loads the files that are new.

    Each file is loaded once: its location is recorded in the commit that has its rows, also if a
    run crashes, is repeated, or runs at the same time as another one. If one new file cannot be
    read, none is loaded, unless `on_bad_files` skips it. The run config `reload` loads
    files again. Rows stream through memory; with `merge` the new rows are held in it.

    Parquet files have types. In CSV and JSON files a column has the type in `columns`, else that of
    the column of the table, else one that is inferred.

    Args:
        name: of the asset.
        source: a file, a directory, or a pattern: `s3://landing/flights/*.csv`, `/in/**/*.json`.
            Names that begin with `_` or `.` do not match.
        mode: `append` adds the rows; `merge` updates and inserts rows by `keys`, and the last row
            with a key counts, in the order in which files were modified; `overwrite` replaces all
            rows of the table by those of the new files.
            `auto_cdc` takes the rows as change events: the metadata `merge_config` has their
            `keys` and `sequence_by`, and the other fields of that merge type.
        keys: columns that identify rows; for the mode `merge`.
        storage_options: storage options for `source`.
        format: `parquet`, `csv` with a header line, or `json` with one object per line. Default: by
            the extension of each file; `.gz` and the like may follow.
        columns: the columns to load with their types in Spark SQL. Default: all columns of the
            files.
        delimiter: of CSV files.
        encoding: of the text in CSV and JSON files, such as `latin-1` or `utf-16`.
        changed_files: whether a file whose time of modification differs from that of the loaded
            one is loaded again.
        new_columns: what happens to a column of a file that `columns`, or else the table, does not
            have. `fail` fails the run; `ignore` leaves the column out, and names it in the
            metadata; `evolve` adds it to the table. Default: `fail`; without `columns` it is
            `evolve` if the `schema_mode` of the asset is `merge` or `overwrite`.
        on_bad_rows: what happens to a row that cannot be parsed, or has a value that does not fit
            its type. `fail` fails the run; `quarantine` loads the other rows, and appends this one
            to the table `<table>_quarantine`, with the reason.
        on_bad_files: what happens to a file that cannot be read. `fail` fails the run; `skip` loads
            the other files, and each run tries this one again.
        minimum_age_seconds: younger files are left for the next run.
        io_manager_key: of a DeltaIOManager, which writes the table.
        asset_options: of `dg.asset`: key_prefix, metadata, description, …

    Raises:
        InvalidArgument: the arguments are inconsistent, or a type is unknown.

    Examples:
        delta_files_asset("flights", "s3://landing/flights/*.csv", key_prefix=["raw"])
    """
    options, named = plain_options(storage_options), names_of(keys)
    types = None if columns is None else arrow_schema_of(columns)
    read = FileOptions(format, types, delimiter, named, encoding)
    zone = LandingZone(
        source, options, minimum_age_seconds, read, new_columns, on_bad_rows, on_bad_files
    )
    return _FilesAsset(name, zone, mode, changed_files, io_manager_key).define(asset_options)


@checked_arguments()
def delta_files_sensor(
    name: str,
    source: str,
    *,
    target: Any,  # noqa: ANN401  as of `dg.sensor`
    storage_options: GivenStorage | None = None,
    minimum_age_seconds: float = 0,
    minimum_interval_seconds: int | None = None,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.SensorDefinition:
    """A sensor that requests a run when files were added to a landing zone, or changed.

    A tick lists the files. A run that fails is not repeated before the files change again, unless
    Dagster retries runs.

    Args:
        name: of the sensor.
        source: as of `delta_files_asset`.
        target: what it runs: the asset.
        storage_options: storage options for `source`.
        minimum_age_seconds: as of `delta_files_asset`; the same value there.
        minimum_interval_seconds: between two ticks.
        default_status: whether the sensor runs from the start.
    """
    zone = LandingZone(
        source, plain_options(storage_options), minimum_age_seconds=minimum_age_seconds
    )

    @dg.sensor(
        name=name,
        target=target,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
    )
    def look(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        found = zone.files()
        files = found.files
        if not files:
            return dg.SkipReason(found.waits_for or f"No file matches {source}")
        listed = "\n".join(sorted(f"{file.path} {file.modified_ms}" for file in files))
        digest = hashlib.sha256(listed.encode()).hexdigest()
        if digest == context.cursor:
            return dg.SkipReason(f"{counted(len(files), 'file')} of {source}: none has changed")
        context.update_cursor(digest)
        return dg.RunRequest()

    return look


class _FilesAsset(msgspec.Struct, frozen=True):
    name: str
    zone: LandingZone
    mode: LoadMode
    changed_files: ChangedFiles
    io_manager_key: str

    def define(self, options: dict[str, Any]) -> dg.AssetsDefinition:
        is_cdc = self.mode == "auto_cdc"
        mode = "merge" if is_cdc else self.mode
        metadata = {**(options.pop("metadata", None) or {}), "mode": mode}
        if is_cdc:
            metadata = {**metadata, "merge_config": change_events_config(metadata, asset=self.name)}
        keys = self.zone.options.keys
        if keys:
            metadata["merge_config"] = {"merge_type": "upsert", "predicate": match_on(keys)}
        if self.zone.new_columns == "evolve":
            metadata = self._add_schema_mode(metadata)
        self._check_options(options)

        def load(context: dg.AssetExecutionContext, config: FilesConfig) -> FileLoad:
            manager = delta_io_manager(context.resources, self.io_manager_key, asset=self.name)
            table = manager.written_table_of(context.asset_key, metadata)
            found = self.plan(None if table is None else table.snapshot(), config.reload)
            if found.changed:
                context.log.warning(
                    f"not loaded again: {counted(len(found.changed), 'file')} modified after the "
                    f'first load, such as {found.changed[0]}: changed_files="load" loads them'
                )
            if found.new.waiting:
                context.log.warning(found.new.waits_for)
            return found

        # The annotations are text here, which Dagster cannot resolve.
        load.__annotations__ = {"context": dg.AssetExecutionContext, "config": FilesConfig}
        define = dg.asset(
            name=self.name,
            io_manager_key=self.io_manager_key,
            metadata=metadata,
            **{"kinds": {"deltalake"}, **options},
        )
        return cast("dg.AssetsDefinition", define(load))

    def _add_schema_mode(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """The metadata of an asset whose table takes new columns."""
        given = metadata.get("schema_mode", metadata.get(f"{NAMESPACE}schema_mode", "merge"))
        if given not in {"merge", "overwrite"}:
            raise InvalidArgument(
                f"{self.name} has new_columns 'evolve', and its schema_mode {given!r} refuses new "
                "columns: leave one of them out"
            )
        return {**metadata, "schema_mode": given}

    def _check_options(self, options: Mapping[str, Any]) -> None:
        name = self.name
        if len(self.zone.options.delimiter) != 1:
            raise InvalidArgument(
                f"the delimiter of {name} is one character, not {self.zone.options.delimiter!r}"
            )
        try:
            codecs.lookup(self.zone.options.encoding)
        except LookupError as error:
            raise InvalidArgument(
                f"the encoding of {name} is {self.zone.options.encoding!r}, which Python does not "
                "know"
            ) from error
        # A misspelled choice must not load rows a second time, or no new ones.
        check_choice(name, "mode", self.mode, LoadMode)
        check_choice(name, "changed_files", self.changed_files, ChangedFiles)
        if self.zone.options.format is not None:
            check_choice(name, "format", self.zone.options.format, FileFormat)
        if self.zone.new_columns is not None:
            check_choice(name, "new_columns", self.zone.new_columns, NewColumns)
        check_choice(name, "on_bad_rows", self.zone.on_bad_rows, OnBadRows)
        check_choice(name, "on_bad_files", self.zone.on_bad_files, OnBadFiles)
        check_keys(name, self.mode, self.zone.options.keys)
        if options.get("partitions_def") is not None:
            raise InvalidArgument(
                f"{name} has partitions_def, and its files are loaded once, whatever the "
                "partition: leave it out; partition_by in its metadata partitions the table"
            )

    def plan(self, target: Snapshot | None, reload: Sequence[str] = ()) -> FileLoad:
        """Which files a run loads; those of `reload` also if they were loaded before."""
        found = self.zone.files()
        again = {file.path for name in reload for file in found.named(name)}
        transactions = () if target is None else lasting_transactions(target)
        loaded = {txn.app_id: txn.version for txn in transactions}
        files, progress, changed, repeated = [], [], [], []
        for file in found.files:
            app_id = LOADED_FILE_PREFIX + found.uri(file)
            before = loaded.get(app_id)
            if file.path not in again:
                if before == file.modified_ms:
                    continue
                # Also if the time is an older one, which a copy may keep.
                if before not in {None, NOT_FOLLOWED} and self.changed_files != "load":
                    changed.append(found.uri(file))
                    continue
            elif before not in {None, NOT_FOLLOWED}:
                repeated.append(found.uri(file))
            files.append(file)
            progress.append(AppTransaction(app_id, file.modified_ms, before))
        new = replace(found, files=tuple(files))
        left = (tuple(changed), tuple(reload), tuple(repeated))
        return FileLoad(self, new, tuple(progress), len(found.files), target, *left)


class FileLoad(AssetValue, frozen=True):
    """The output of an asset of files for its IO manager."""

    asset: _FilesAsset
    new: LandingFiles
    """The files to load."""
    progress: tuple[AppTransaction, ...]
    """The `txn` actions that say that they are loaded."""
    matching: int
    """Number of files that match, loaded before or not."""
    target: Snapshot | None
    """The table; None if it does not exist yet."""
    changed: tuple[str, ...] = ()
    """Files that were replaced or modified after they were loaded, and are not loaded again."""
    reload: tuple[str, ...] = ()
    """What the run was asked to load again."""
    repeated: tuple[str, ...] = ()
    """Files that are loaded again because of that."""

    def write(self, write: AssetWrite) -> WrittenAsset | NothingWritten:
        """Write the rows of new files and record the files, as one commit. Files that concurrent
        runs have loaded meanwhile are left out: the files are planned again.
        """
        load = _drop_done_reload(self, write)
        while True:
            try:
                return _load_files(write, load)
            except (ConcurrentTransaction, MetadataChanged, ProtocolChanged) as conflict:
                # Of two first runs, one creates the table.
                table = DeltaTable(write.uri, storage_options=write.storage_options).snapshot()
                left = _drop_done_reload(self.asset.plan(table, load.reload), write)
                if isinstance(conflict, ConcurrentTransaction) and left.progress == load.progress:
                    raise
                load = left

    def without(self, bad_files: Collection[str]) -> FileLoad:
        """The load without some files, which are not recorded."""
        left_out = {LOADED_FILE_PREFIX + uri for uri in bad_files}
        files = tuple(file for file in self.new.files if self.new.uri(file) not in bad_files)
        progress = tuple(known for known in self.progress if known.app_id not in left_out)
        return replace(self, new=replace(self.new, files=files), progress=progress)

    @property
    def nothing_new(self) -> str:
        """Why no file is loaded."""
        if not self.matching:
            return self.new.waits_for or f"no file matches {self.new.zone.source}"
        return f"no file is new: {counted(self.matching, 'file')} loaded before"

    def metadata(self, checked: CheckedFiles | None = None) -> dict[str, object]:
        """What the UI shows, besides the facts of the commit."""
        uris = [self.new.uri(file) for file in self.new.files]
        found: dict[str, object] = {
            "delta/source_files": len(uris),
            "delta/source_bytes": sum(file.size_bytes for file in self.new.files),
        }
        details: dict[str, object] = {
            "loaded_files": uris[:_MAX_NAMED],
            "changed_files_not_loaded": list(self.changed[:_MAX_NAMED]),
        }
        if checked is not None:
            found |= {
                "delta/quarantined_rows": checked.num_bad_rows,
                "delta/skipped_files": len(checked.bad_files),
                "delta/ignored_columns": sorted(checked.ignored_columns) or None,
                "delta/null_columns": sorted(checked.null_columns) or None,
            }
            details |= {
                "skipped_files": dict(islice(checked.bad_files.items(), _MAX_NAMED)) or None,
                "files_with_ignored_columns": _first_files(checked.ignored_columns),
                "files_with_null_columns": _first_files(checked.null_columns),
            }
        return {**found, DETAILS: details}


def _drop_done_reload(load: FileLoad, write: AssetWrite) -> FileLoad:
    """The load, without what the run was asked to load again if an earlier attempt of the run has
    done that.
    """
    if not load.reload or write.idempotency is None:
        return load
    app_id, version = write.idempotency
    if load.target is not None and load.target.transaction_version(app_id) is not None:
        return load.asset.plan(load.target)
    return replace(load, progress=(*load.progress, AppTransaction(app_id, version, None)))


def _first_files(columns: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]] | None:
    return {name: files[:_MAX_NAMED] for name, files in columns.items()} or None


def _list_warnings(write: AssetWrite, load: FileLoad, checked: CheckedFiles) -> Iterator[str]:
    """What the run leaves out, or loads a second time."""
    for uri, error in islice(checked.bad_files.items(), 1):
        yield (
            f"{counted(len(checked.bad_files), 'file')} skipped, which the next run tries again, "
            f"such as {uri}: {error}"
        )
    if count := checked.num_bad_rows:
        where = write.quarantine.uri
        yield f"{counted(count, 'row')} of the files not loaded: see the table {where}"
    if null := checked.null_columns:
        yield (
            f"columns that a file lacks are null in its rows: {first_names(sorted(null))}; such a "
            f"file is {next(iter(null.values()))[0]}"
        )
    if load.repeated and load.asset.mode == "append":
        yield (
            f"loaded again and appended: {counted(len(load.repeated), 'file')}, such as "
            f"{load.repeated[0]}; the table has their rows twice, unless they were deleted before"
        )


def _quarantine_rows(write: AssetWrite, load: FileLoad, checked: CheckedFiles) -> None:
    """Leave the bad rows to the quarantine, before the others are committed."""
    loads = {
        file.rows.uri: Load(LOADED_FILE_PREFIX + file.rows.uri, file.rows.file.modified_ms)
        for file in checked.files
    }

    def rows() -> Iterator[QuarantinedRow]:
        for file, row in checked.bad_rows():
            yield QuarantinedRow(loads[file.uri], row.text, [row.reason], file.uri, row.number)

    counts = {loads[file.rows.uri]: file.bad_rows or 0 for file in checked.files}
    again = {LOADED_FILE_PREFIX + uri for uri in load.repeated}
    loaded = {file.app_id: file.after for file in load.progress if file.app_id not in again}
    write.quarantine.replace_rows(counts, rows, loaded)


def _load_files(write: AssetWrite, load: FileLoad) -> WrittenAsset | NothingWritten:
    table, zone = load.target, load.new.zone
    if not load.new.files:
        return replace(nothing_written(write, load.nothing_new), metadata=load.metadata())
    checked = load.new.check(
        pa.schema([]) if table is None else arrow_schema_of(table.schema),
        evolves=write.options.schema_mode in {"merge", "overwrite"},
    )
    load = load.without(checked.bad_files)
    warnings, metadata = list(_list_warnings(write, load, checked)), load.metadata(checked)
    if not load.new.files:
        reason = f"{counted(len(checked.bad_files), 'file')} cannot be read, and no other is new"
        return replace(nothing_written(write, reason), warnings=warnings, metadata=metadata)
    if zone.on_bad_rows == "quarantine":
        _quarantine_rows(write, load, checked)
    reader, keys = checked.to_reader(), zone.options.keys
    rows = _last_rows(reader, keys, write.name) if keys else reader
    # The files identify a repeated attempt.
    written = write_asset(replace(write, idempotency=None, progress=load.progress), rows)
    warnings += written.warnings
    if written.metrics.get("numRemovedFiles") and not written.metrics.get("numOutputRows"):
        warnings.append(
            f"the new files of {write.name} have no rows, and its mode overwrite emptied the "
            f"table; RESTORE to version {written.snapshot.version - 1} brings the rows back"
        )
    return replace(written, warnings=warnings, metadata=metadata)


def _last_rows(reader: pa.RecordBatchReader, keys: Sequence[str], asset: str) -> pa.Table:
    """The last of the rows with the same values in the keys, in the types of a table."""
    rows = to_table_types(reader, name=f"the files of {asset}").read_all()
    keys = keys_of_rows(rows.column_names, keys, rows=f"the files of {asset}")
    # Lines of JSON may lack the keys; only the last of them would be left.
    nulls = [rows[key].is_null() for key in keys]
    if (pc.sum(functools.reduce(pc.and_, nulls)).as_py() or 0) > 1:
        raise InvalidArgument(
            f"the files of {asset} have several rows in which {' and '.join(keys)} are null, so "
            "that nothing tells them apart: correct the files, or the keys"
        )
    order = np.arange(rows.num_rows) * 2 + 1
    positions = last_positions(order, key_columns(rows, keys, asset=asset), keys, asset)
    return rows.take(pa.array(positions))
