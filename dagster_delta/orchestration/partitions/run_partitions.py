"""The partitions of an output or an input in its run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dagster import InputContext, OutputContext

from dagster_delta.orchestration.partitions.partitions import PartitionSelection, select_partitions

__all__ = ["RunPartitions"]


@dataclass(frozen=True, slots=True)
class RunPartitions:
    """How partition keys of an asset map to rows of its table.

    Args:
        context: of the output or input.
        partition_expr: column that holds the partition, or columns by dimension.
        asset: name of the asset, for messages.
        metadata_keys: of the asset, to report a misspelt `partition_expr`.
    """

    context: OutputContext | InputContext
    partition_expr: str | Mapping[str, str] | None
    asset: str
    metadata_keys: Mapping[str, object]

    def selection(self) -> PartitionSelection | None:
        """The partitions being written or read, or None if the asset has none.

        Raises:
            InvalidArgument: `partition_expr` is missing, or does not match the dimensions.
        """
        if not self.context.has_asset_partitions:
            return None
        return self.select(self.context.asset_partition_keys)

    def select(self, keys: Sequence[str]) -> PartitionSelection:
        """The partitions of some keys. Raises as `selection` does."""
        return select_partitions(
            self.context.asset_partitions_def,
            keys,
            self.partition_expr,
            asset=self.asset,
            metadata_keys=self.metadata_keys,
        )
