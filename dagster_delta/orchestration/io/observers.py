"""Observers of the tables that the IO manager reads and writes: one class each, which nothing else
knows but the line of the IO manager that registers it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dagster import InputContext, OutputContext

    from dagster_delta.orchestration.io.asset_writer import WrittenAsset
    from dagster_delta.table.read.snapshot import Snapshot


class TableObserver:
    """Called around each output and input of a DeltaIOManager; does nothing by default."""

    def before_write(self) -> None:
        """Check what the observer needs, before a row is written; an error fails the step."""

    def after_write(self, context: OutputContext, written: WrittenAsset) -> None:
        """See the commit of an output, or that it was skipped; raises nothing, as it is stored."""

    def after_read(self, context: InputContext, snapshot: Snapshot) -> None:
        """See the version that an input was loaded from."""
