"""Compacts small files after a write, on tables with that property.

Spec: none; `delta.autoOptimize.autoCompact` is a property of the reference implementation.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from dagster_delta.protocol.values.arrow_values import integer_scalar
from dagster_delta.table.operations.write_planning import write_spec
from dagster_delta.table.read.file_planner import FilePlanner
from dagster_delta.table.transaction.transaction import CommitResult

if TYPE_CHECKING:
    from dagster_delta.clock import Clock
    from dagster_delta.engines.engine import Engine
    from dagster_delta.table.operations.optimize import OptimizeResult

_LOG = logging.getLogger(__name__)

MIN_FILES = 50
"""Number of small files in one partition that triggers it, as in the reference implementation."""
_SMALL_SHARE = 0.5
"""Files below this share of the target size are small."""


def compact_after(result: CommitResult, *, engine: Engine, clock: Clock) -> OptimizeResult | None:
    """Compact the small files of a table after a write if that is due, otherwise return None.

    The write is already committed, so a failure is logged and not raised.
    """
    snapshot = result.snapshot
    try:
        properties = snapshot.configuration.properties
        asked = properties.auto_compact != "false" or properties.auto_optimize
        if result.skipped or not asked:
            return None
        spec = write_spec(snapshot.configuration, snapshot.store.location, check_rows=False)
        small_bytes = int(spec.target_file_size_bytes * _SMALL_SHARE)
        limit = integer_scalar(small_bytes)
        small = FilePlanner(snapshot).choose(
            ["size_bytes"], lambda files: pc.less(files["size_bytes"], limit)
        )
        if small.num_rows < MIN_FILES:
            return None
        from dagster_delta.table.operations.optimize import OptimizeOptions, optimize_table

        options = OptimizeOptions(
            min_file_size_bytes=small_bytes,
            min_files=MIN_FILES,
            max_deleted_share=1.0,
            engine=engine,
            is_automatic=True,
        )
        return optimize_table(snapshot, options, clock=clock)
    except Exception as error:  # noqa: BLE001 - the write is committed already
        _LOG.warning(
            "version %d of %s is committed, but its small files were not compacted: %s",
            snapshot.version,
            snapshot.store.location.uri,
            error,
        )
        return None
