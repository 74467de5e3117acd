"""Conditions on partition columns that are computed, such as `upper(country) = 'DE'`.

Every row of a file has the partition values of the file, so the condition is computed once for each
file instead of its rows.

Spec: Partition Value Serialization.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import pyarrow as pa

from dagster_delta.engines.expressions.evaluation import evaluate_tree
from dagster_delta.errors import DeltaError
from dagster_delta.protocol.statistics.predicates import Computed
from dagster_delta.sql.typed import Column, Refused, Typed, walk
from dagster_delta.sql.types import BOOLEAN

__all__ = ["computed_filter"]


def computed_filter(partition_columns: Collection[str], condition: Typed) -> Computed | None:
    """The predicate of a condition on partition columns alone; None for any other condition.

    Args:
        partition_columns: logical names.
        condition: a part of a filter.

    Raises:
        Nothing.
    """
    nodes = list(walk(condition))
    paths = [node.path for node in nodes if isinstance(node, Column)]
    if condition.data_type != BOOLEAN or not paths:
        return None
    if any(isinstance(node, Refused) for node in nodes):
        return None
    if any(len(path) > 1 or path[0] not in partition_columns for path in paths):
        return None
    return Computed(frozenset(path[0] for path in paths), partial(_values, condition))


def _values(condition: Typed, partitions: pa.Table) -> pa.BooleanArray | None:
    try:
        return evaluate_tree(condition, partitions)
    except DeltaError:
        # It may fail on a partition whose rows another part of the filter leaves out.
        return None
