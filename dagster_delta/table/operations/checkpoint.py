"""CHECKPOINT: writes a checkpoint of a version on request.

Spec: Checkpoints; Checkpoint Protection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_delta.clock import now_ms
from dagster_delta.errors import UnsupportedFeature, VersionNotFound
from dagster_delta.table.log.reader import check_writable
from dagster_delta.table.log_upkeep.checkpoint_files import write_checkpoint

if TYPE_CHECKING:
    from dagster_delta.table.table_handle import TableHandle


def checkpoint(table: TableHandle, /) -> None:
    """Write a checkpoint of the version of this handle.

    Raises:
        TableNotFound, StorageFailure, UnsupportedWriterVersion.
        InvalidArgument: this handle refuses writes.
        UnsupportedFeature: the table cannot be written, or its old checkpoints are protected.
    """
    table._check_refusal()
    snapshot = table._known()
    uri = snapshot.store.location.uri
    check_writable(snapshot.store, snapshot.configuration, snapshot.version)
    known = snapshot.known_commit
    if known is not None and not known.is_in(snapshot.store):
        # Its checkpoint would take the place of what the table is now.
        raise VersionNotFound(known.absence, table=uri, version=snapshot.version)
    # Spec: Checkpoint Protection. The existing checkpoints of versions before a feature was dropped
    # hide it from readers that do not know it; other checkpoints could expose it.
    latest = snapshot.update()
    protected = latest.configuration.properties.checkpoint_protection_before_version
    if latest.configuration.supports("checkpointProtection") and snapshot.version < protected:
        raise UnsupportedFeature(
            f"the checkpoints of versions before {protected} are protected, as a table feature was "
            "dropped then, so none is added; write one of the latest version",
            table=uri,
            version=snapshot.version,
        )
    write_checkpoint(snapshot, now_ms=now_ms())
