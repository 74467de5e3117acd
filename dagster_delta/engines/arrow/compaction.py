"""Writing the rows of data files anew to fewer, larger or sorted files, in this process.

Spec: Add File and Remove File (dataChange).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from dagster_delta.engines.arrow.engine import ArrowEngine
from dagster_delta.engines.engine import ReadPlan, WriteResult, WriteSpec
from dagster_delta.errors import DeltaError
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.storage.object_store import ObjectStore

__all__ = ["combined", "compact_files", "discard_files"]

_LOG = logging.getLogger(__name__)

_MAX_WORKERS = 4
"""Groups at work at once: each holds the buffers of one reader and one writer."""


def compact_files(groups: Sequence[ReadPlan], spec: WriteSpec) -> WriteResult:
    """New files with the rows of the groups, one for each group that fits into one.

    Args:
        groups: files that belong together.
        spec: how the files are written.

    Raises:
        DataFileMissing, CorruptDeletionVector, InvalidTable, UnsupportedFeature, StorageFailure.
    """

    def rewrite(group: ReadPlan) -> WriteResult:
        engine = ArrowEngine()
        return engine.write(engine.read(group), spec, store=group.store)

    count = min(_MAX_WORKERS, os.cpu_count() or 1, len(groups))
    with ThreadPoolExecutor(count, "delta-compact") as workers:
        running = [workers.submit(rewrite, each) for each in groups]
        try:
            return combined([each.result() for each in running])
        except BaseException:
            for each in running:
                each.cancel()
            done, _ = wait(running)
            written = [
                each.result() for each in done if not each.cancelled() and not each.exception()
            ]
            discard_files(combined(written), groups[0].store)
            raise


def combined(results: Sequence[WriteResult]) -> WriteResult:
    """What several writes have written together."""
    return WriteResult(
        tuple(file for each in results for file in each.files),
        sum(each.num_rows for each in results),
        sum(each.num_bytes for each in results),
    )


def discard_files(written: WriteResult, store: ObjectStore) -> None:
    """Delete files that nothing refers to, as far as the store lets it."""
    try:
        store.delete([decode_path(each.path) for each in written.files])
    except (DeltaError, OSError):
        # The error that brought us here matters more; VACUUM finds what is left.
        _LOG.warning(
            "up to %d unreferenced data files are left in %s",
            len(written.files),
            store.location.uri,
            exc_info=True,
        )
