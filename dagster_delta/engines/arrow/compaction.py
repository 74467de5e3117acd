"""Rewriting the rows of data files to fewer, larger or sorted files, in this process.

Spec: Add File and Remove File (dataChange).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from dagster_delta.engines.engine import Engine
from dagster_delta.engines.plans import ReadPlan, WriteResult, WriteSpec
from dagster_delta.storage.unreferenced_files import CreatedFiles

__all__ = ["compact_files"]


def compact_files(
    engine: Engine, groups: Sequence[ReadPlan], spec: WriteSpec, *, num_workers: int
) -> list[WriteResult]:
    """New files with the rows of each group, one for a group that fits into one.

    Args:
        engine: the embedded one.
        groups: files that belong together.
        spec: how the files are written.
        num_workers: groups that are processed at once.

    Raises:
        DataFileMissing, CorruptDeletionVector, InvalidTable, UnsupportedFeature, StorageFailure.
    """
    created = CreatedFiles(groups[0].store)

    def rewrite(group: ReadPlan) -> WriteResult:
        written = engine.write(engine.read(group), spec, store=group.store)
        created.add_logged(each.path for each in written.files)
        return written

    count = min(num_workers, len(groups))
    # The workers finish before files are deleted.
    with created, ThreadPoolExecutor(count, "delta-compact") as workers:
        running = [workers.submit(rewrite, each) for each in groups]
        try:
            return [each.result() for each in running]
        finally:
            workers.shutdown(cancel_futures=True)
