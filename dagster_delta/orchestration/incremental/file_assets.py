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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import dagster as dg
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.errors import (
    ConcurrentTransaction,
    InvalidArgument,
    MetadataChanged,
    ProtocolChanged,
)
from dagster_delta.evolution.column_definition import schema_of_types
from dagster_delta.orchestration.incremental.landing_files import (
    FileFormat,
    LandingFiles,
    LandingZone,
)
from dagster_delta.orchestration.incremental.upstream_changes import (
    key_columns,
    keys_of_rows,
    last_positions,
)
from dagster_delta.orchestration.io.asset_options import check_choice, check_keys, names_of
from dagster_delta.orchestration.io.asset_writer import (
    AssetValue,
    AssetWrite,
    NothingWritten,
    WrittenAsset,
    nothing_written,
    write_asset,
)
from dagster_delta.orchestration.io.io_manager import delta_io_manager
from dagster_delta.orchestration.io.merge_config import match_on
from dagster_delta.orchestration.known_fields import checked_arguments
from dagster_delta.orchestration.metadata_keys import DETAILS, counted
from dagster_delta.orchestration.storage_options import StorageOptions, plain_options
from dagster_delta.parquet.store_assignment import assign_batches
from dagster_delta.protocol.values.arrow_schema import from_arrow_schema, to_arrow_schema
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.transaction.commit_result import (
    LOADED_FILE_PREFIX,
    NOT_FOLLOWED,
    lasting_transactions,
)
from dagster_delta.table.transaction.transaction import AppTransaction

if TYPE_CHECKING:
    from dagster_delta.table.read.snapshot import Snapshot

LoadMode: TypeAlias = Literal["append", "merge", "overwrite"]
ChangedFiles = Literal["skip", "load"]
"""What happens to a file that was replaced or modified after it was loaded."""

_MAX_NAMED = 20


@checked_arguments(dg.asset)
def delta_files_asset(
    name: str,
    source: str,
    *,
    mode: LoadMode = "append",
    keys: str | Sequence[str] = (),
    storage_options: StorageOptions | Mapping[str, object] | None = None,
    format: FileFormat | None = None,  # noqa: A002  the word for it
    columns: Mapping[str, str] | None = None,
    delimiter: str = ",",
    encoding: str = "utf-8",
    changed_files: ChangedFiles = "skip",
    minimum_age_seconds: float = 0,
    io_manager_key: str = "io_manager",
    **asset_options: Any,
) -> dg.AssetsDefinition:
    """An asset of files that others put somewhere; each run loads the files that are new.

    Each file is loaded once: its location is recorded in the commit that has its rows, also if a
    run crashes, is repeated, or runs at the same time as another one. If one new file cannot be
    read, none is loaded. Rows stream through memory; with `merge` the new rows are held in it.

    Parquet files have types. In CSV and JSON files a column has the type in `columns`, else that of
    the column of the table, else one that is inferred.

    Args:
        name: of the asset.
        source: a file, a directory, or a pattern: `s3://landing/flights/*.csv`, `/in/**/*.json`.
            Names that begin with `_` or `.` do not match.
        mode: `append` adds the rows; `merge` updates and inserts rows by `keys`, and the last row
            with a key counts, in the order in which files were modified; `overwrite` replaces all
            rows of the table by those of the new files.
        keys: columns that identify rows; for the mode `merge`.
        storage_options: storage options for `source`.
        format: `parquet`, `csv` with a header line, or `json` with one object per line. Default: by
            the extension of each file; `.gz` and the like may follow.
        columns: the columns to load with their types in Spark SQL. Default: all columns of the
            files; new ones follow the `schema_mode` of the asset.
        delimiter: of CSV files.
        encoding: of the text in CSV and JSON files, such as `latin-1` or `utf-16`.
        changed_files: whether a file whose time of modification differs from that of the loaded
            one is loaded again.
        minimum_age_seconds: younger files are left for the next run.
        io_manager_key: of a DeltaIOManager, which writes the table.
        asset_options: of `dg.asset`: key_prefix, metadata, description, …

    Raises:
        InvalidArgument: the arguments are inconsistent, or a type is unknown.

    Examples:
        delta_files_asset("flights", "s3://landing/flights/*.csv", key_prefix=["raw"])
    """
    options, named = plain_options(storage_options), names_of(keys)
    types = None if columns is None else to_arrow_schema(schema_of_types(columns))
    zone = LandingZone(
        source, options, format, types, delimiter, minimum_age_seconds, named, encoding
    )
    return _FilesAsset(name, zone, mode, changed_files, io_manager_key).define(asset_options)


@checked_arguments()
def delta_files_sensor(
    name: str,
    source: str,
    *,
    target: Any,  # noqa: ANN401  as of `dg.sensor`
    storage_options: StorageOptions | Mapping[str, object] | None = None,
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


@dataclass(frozen=True, slots=True)
class _FilesAsset:
    name: str
    zone: LandingZone
    mode: LoadMode
    changed_files: ChangedFiles
    io_manager_key: str

    def define(self, options: dict[str, Any]) -> dg.AssetsDefinition:
        metadata = {**(options.pop("metadata", None) or {}), "mode": self.mode}
        if self.zone.keys:
            merged = {"merge_type": "upsert", "predicate": match_on(self.zone.keys)}
            metadata["merge_config"] = merged
        self._check(options)

        def load(context: dg.AssetExecutionContext) -> FileLoad:
            manager = delta_io_manager(context.resources, self.io_manager_key, asset=self.name)
            table = manager.table_of(context.asset_key, metadata)
            found = self.plan(None if table is None else table.snapshot())
            if found.changed:
                context.log.warning(
                    f"not loaded again: {counted(len(found.changed), 'file')} modified after the "
                    f'first load, such as {found.changed[0]}: changed_files="load" loads them'
                )
            if found.new.waiting:
                context.log.warning(found.new.waits_for)
            return found

        # The annotations are text here, which Dagster cannot resolve.
        load.__annotations__ = {"context": dg.AssetExecutionContext}
        define = dg.asset(
            name=self.name,
            io_manager_key=self.io_manager_key,
            metadata=metadata,
            **{"kinds": {"deltalake"}, **options},
        )
        return cast("dg.AssetsDefinition", define(load))

    def _check(self, options: Mapping[str, Any]) -> None:
        name = self.name
        if len(self.zone.delimiter) != 1:
            raise InvalidArgument(
                f"the delimiter of {name} is one character, not {self.zone.delimiter!r}"
            )
        try:
            codecs.lookup(self.zone.encoding)
        except LookupError as error:
            raise InvalidArgument(
                f"the encoding of {name} is {self.zone.encoding!r}, which Python does not know"
            ) from error
        # A misspelled choice must not load rows a second time, or no new ones.
        check_choice(name, "mode", self.mode, LoadMode)
        check_choice(name, "changed_files", self.changed_files, ChangedFiles)
        if self.zone.format is not None:
            check_choice(name, "format", self.zone.format, FileFormat)
        check_keys(name, self.mode, self.zone.keys)
        if options.get("partitions_def") is not None:
            raise InvalidArgument(
                f"{name} has partitions_def, and its files are loaded once, whatever the "
                "partition: leave it out; partition_by in its metadata partitions the table"
            )

    def plan(self, target: Snapshot | None) -> FileLoad:
        """Which files a run loads."""
        found = self.zone.files()
        transactions = () if target is None else lasting_transactions(target)
        loaded = {txn.app_id: txn.version for txn in transactions}
        files, progress, changed = [], [], []
        for file in found.files:
            app_id = LOADED_FILE_PREFIX + found.uri(file)
            before = loaded.get(app_id)
            if before == file.modified_ms:
                continue
            # Also if the time is an older one, which a copy may keep.
            if before not in {None, NOT_FOLLOWED} and self.changed_files != "load":
                changed.append(found.uri(file))
                continue
            files.append(file)
            progress.append(AppTransaction(app_id, file.modified_ms, before))
        new = replace(found, files=tuple(files))
        return FileLoad(self, new, tuple(progress), len(found.files), tuple(changed), target)


@dataclass(frozen=True, slots=True)
class FileLoad(AssetValue):
    """The output of an asset of files for its IO manager."""

    asset: _FilesAsset
    new: LandingFiles
    """The files to load."""
    progress: tuple[AppTransaction, ...]
    """The `txn` actions that say that they are loaded."""
    matching: int
    """Number of files that match, loaded before or not."""
    changed: tuple[str, ...]
    """Files that were replaced or modified after they were loaded, and are not loaded again."""
    target: Snapshot | None
    """The table; None if it does not exist yet."""

    rows = None

    def write(self, write: AssetWrite) -> WrittenAsset | NothingWritten:
        """Write the rows of new files and record the files, as one commit. Files that concurrent
        runs have loaded meanwhile are left out: the files are planned again.
        """
        load = self
        while True:
            try:
                return _written(write, load)
            except (ConcurrentTransaction, MetadataChanged, ProtocolChanged) as conflict:
                # Of two first runs, one creates the table.
                table = DeltaTable(write.uri, storage_options=write.storage_options).snapshot()
                left = self.asset.plan(table)
                if isinstance(conflict, ConcurrentTransaction) and left.progress == load.progress:
                    raise
                load = left

    @property
    def nothing_new(self) -> str:
        """Why no file is loaded."""
        if not self.matching:
            return self.new.waits_for or f"no file matches {self.new.zone.source}"
        return f"no file is new: {counted(self.matching, 'file')} loaded before"

    @property
    def metadata(self) -> dict[str, object]:
        """What the UI shows, besides the facts of the commit."""
        uris = [self.new.uri(file) for file in self.new.files]
        return {
            "delta/source_files": len(uris),
            "delta/source_bytes": sum(file.size_bytes for file in self.new.files),
            DETAILS: {
                "loaded_files": uris[:_MAX_NAMED],
                "changed_files_not_loaded": list(self.changed[:_MAX_NAMED]),
            },
        }


def _written(write: AssetWrite, load: FileLoad) -> WrittenAsset | NothingWritten:
    table, keys = load.target, load.new.zone.keys
    if not load.new.files:
        return replace(nothing_written(write, load.nothing_new), metadata=load.metadata)
    reader = load.new.to_reader(pa.schema([]) if table is None else to_arrow_schema(table.schema))
    rows = _last_rows(reader, keys, write.name) if keys else reader
    # The files identify a repeated attempt.
    written = write_asset(replace(write, idempotency=None, progress=load.progress), rows)
    warnings = list(written.warnings)
    if written.metrics.get("numRemovedFiles") and not written.metrics.get("numOutputRows"):
        warnings.append(
            f"the new files of {write.name} have no rows, and its mode overwrite emptied the "
            f"table; RESTORE to version {written.snapshot.version - 1} brings the rows back"
        )
    return replace(written, warnings=warnings, metadata=load.metadata)


def _last_rows(reader: pa.RecordBatchReader, keys: Sequence[str], asset: str) -> pa.Table:
    """The last of the rows with the same values in the keys, in the types of a table."""
    schema = from_arrow_schema(reader.schema)
    batches = assign_batches(reader, schema, table=f"the files of {asset}")
    rows = pa.Table.from_batches(batches, to_arrow_schema(schema))
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
