"""The commit that loads files: their rows, and the record that they were loaded.

A table remembers each file as an application transaction, whose id is the location of the file and
whose version is the time at which it was modified. Rows and transactions are in one commit, so that
a crashed, repeated or concurrent run loads no file twice.

Spec: Transaction Identifiers.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.errors import (
    ConcurrentTransaction,
    InvalidArgument,
    MetadataChanged,
    ProtocolChanged,
)
from dagster_delta.orchestration.incremental.landing_files import LandingFiles
from dagster_delta.orchestration.incremental.net_changes import key_columns, last_positions
from dagster_delta.orchestration.io.asset_writer import (
    AssetValue,
    AssetWrite,
    NothingWritten,
    WrittenAsset,
    snapshot_of,
    write_asset,
)
from dagster_delta.orchestration.metadata_keys import DETAILS
from dagster_delta.protocol.values.arrow_schema import to_arrow_schema
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.transaction.commit_result import (
    LOADED_FILE_PREFIX,
    NOT_FOLLOWED,
    lasting_transactions,
)
from dagster_delta.table.transaction.transaction import AppTransaction

if TYPE_CHECKING:
    from dagster_delta.table.read.snapshot import Snapshot

ChangedFiles = Literal["skip", "load"]
"""What happens to a file that was replaced or modified after it was loaded."""

_MAX_NAMED = 20


@dataclass(frozen=True, slots=True)
class FileLoad(AssetValue):
    """The output of an asset of files for its IO manager."""

    new: LandingFiles
    """The files to load."""
    progress: tuple[AppTransaction, ...]
    """The `txn` actions that say that they are loaded."""
    matching: int
    """Number of files that match, loaded before or not."""
    changed: tuple[str, ...]
    """Files that were replaced or modified after they were loaded, and are not loaded again."""
    known: pa.Schema
    """Columns of the table."""
    keys: tuple[str, ...] = ()
    """If several new rows have the same values in these columns, the last one counts."""

    rows = None

    def write(self, write: AssetWrite) -> WrittenAsset | NothingWritten:
        """Write the rows of new files and record the files, as one commit. Files that concurrent
        runs have loaded meanwhile are left out.
        """
        load = self
        while True:
            try:
                return _written(write, load)
            except (ConcurrentTransaction, MetadataChanged, ProtocolChanged) as conflict:
                # Of two first runs, one creates the table.
                table = DeltaTable(write.uri, storage_options=write.storage_options).snapshot()
                left = _still_new(load, table)
                if isinstance(conflict, ConcurrentTransaction) and left.progress == load.progress:
                    raise
                load = left

    @property
    def nothing_new(self) -> str:
        """Why no file is loaded."""
        if not self.matching:
            return self.new.waits_for or f"no file matches {self.new.zone.source}"
        return f"all {self.matching} files were loaded before"

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


def plan_load(
    found: LandingFiles,
    target: Snapshot | None,
    *,
    changed_files: ChangedFiles,
    keys: tuple[str, ...],
) -> FileLoad:
    """Which of the files a run loads."""
    loaded: dict[str, int] = {}
    known = pa.schema([])
    if target is not None:
        loaded = {txn.app_id: txn.version for txn in lasting_transactions(target)}
        known = to_arrow_schema(target.schema)
    files, progress, changed = [], [], []
    for file in found.files:
        app_id = LOADED_FILE_PREFIX + found.uri(file)
        before = loaded.get(app_id)
        if before == file.modified_ms:
            continue
        # Also if the time is an older one, which a copy may keep.
        if before not in {None, NOT_FOLLOWED} and changed_files == "skip":
            changed.append(found.uri(file))
            continue
        files.append(file)
        progress.append(AppTransaction(app_id, file.modified_ms, before))
    new = replace(found, files=tuple(files))
    return FileLoad(new, tuple(progress), len(found.files), tuple(changed), known, keys)


def _still_new(load: FileLoad, table: Snapshot) -> FileLoad:
    loaded = {txn.app_id: txn.version for txn in table.transactions()}
    left = [
        (file, txn)
        for file, txn in zip(load.new.files, load.progress, strict=True)
        if loaded.get(txn.app_id) == txn.after
    ]
    new = replace(load.new, files=tuple(file for file, _ in left))
    progress = tuple(txn for _, txn in left)
    return replace(load, new=new, progress=progress, known=to_arrow_schema(table.schema))


def _written(write: AssetWrite, load: FileLoad) -> WrittenAsset | NothingWritten:
    if not load.new.files:
        table = snapshot_of(
            DeltaTable(write.uri, storage_options=write.storage_options, must_exist=False)
        )
        if table is None:
            return NothingWritten(load.nothing_new, load.metadata)
        return WrittenAsset(write, table, skipped_because=load.nothing_new, metadata=load.metadata)
    rows: object = load.new.to_reader(load.known)
    if load.keys:
        rows = _last_rows(load.new.to_reader(load.known).read_all(), load.keys, write.name)
    # The files identify a repeated attempt.
    written = write_asset(replace(write, idempotency=None, progress=load.progress), rows)
    warnings = list(written.warnings)
    if written.metrics.get("numRemovedFiles") and not written.metrics.get("numOutputRows"):
        warnings.append(
            f"the new files of {write.name} have no rows, and its mode overwrite emptied the "
            f"table; RESTORE to version {written.snapshot.version - 1} brings the rows back"
        )
    return replace(written, warnings=warnings, metadata=load.metadata)


def _last_rows(rows: pa.Table, keys: tuple[str, ...], asset: str) -> pa.Table:
    if missing := [key for key in keys if key not in rows.column_names]:
        raise InvalidArgument(f"the files of {asset} have no column {missing[0]!r}, which is a key")
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
