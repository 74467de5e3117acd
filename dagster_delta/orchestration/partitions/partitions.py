"""The partitions of one write or read, as plain values independent of a table.

Dagster hands an IO manager partition keys in any order, with gaps, and for multi-partitions in any
combination. A bounding range over them would touch other partitions, so the keys are kept exactly:
as a union of boxes, each the product of some keys of every dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, TypeAlias

import dagster as dg
import msgspec
from msgspec.structs import replace

from dagster_delta.errors import InvalidArgument

KEY_SEPARATOR = "|"
"""Separates the dimensions of a multi-partition key, as in Dagster."""


@dataclass(frozen=True, slots=True)
class DimensionSlice:
    """Some partitions of one dimension."""

    column: str
    """The column (or dotted path) that `partition_expr` names for this dimension."""
    keys: tuple[str, ...]
    """Partition keys, without repeats; in time order if they are time windows."""
    windows: tuple[dg.TimeWindow, ...] | None = None
    """The window of each key, half open, or None if the dimension is not partitioned by time."""
    known_keys: Callable[[], Sequence[str]] = field(default=tuple, repr=False, compare=False)
    """Reads all keys of a dimension that is not partitioned by time, as far as they are known."""
    is_dimension: bool = True
    """False for values that all rows of an asset have in a table that it shares."""


class PartitionSelection(msgspec.Struct, frozen=True):
    """Some partitions of one asset: the union of boxes, each a product of its slices."""

    keys: tuple[str, ...]
    """The partition keys in Dagster's spelling, sorted, without repeats."""
    boxes: tuple[tuple[DimensionSlice, ...], ...]
    """Every box has the dimensions in the same order. Without boxes, no row is selected."""


SelectPartitions: TypeAlias = Callable[[Iterable[str]], PartitionSelection]
"""Selects partitions of one asset by their keys."""


def select_partitions(
    partitions_def: dg.PartitionsDefinition[Any],
    keys: Iterable[str],
    partition_expr: str | Mapping[str, str] | None,
    *,
    asset: str,
) -> PartitionSelection:
    """The partitions of a set of partition keys, in any order, repeats allowed."""
    if partition_expr is None:
        raise InvalidArgument(
            f"asset {asset} is partitioned, but its metadata has no 'partition_expr', so nothing "
            "says which column holds the partition; set it to the name of the column, or to a "
            "mapping from each dimension to its column"
        )
    distinct = sorted(set(keys))
    columns = dimension_columns(partitions_def, partition_expr, owner=f"asset {asset}")
    parts = [keys_by_dimension(partitions_def, key) for key in distinct]
    boxes = tuple(
        tuple(
            _make_slice(definition, side, column)
            for (column, definition), side in zip(columns.values(), sides, strict=True)
        )
        for sides in _find_boxes([tuple(key[name] for name in columns) for key in parts])
    )
    return PartitionSelection(tuple(map(str, distinct)), boxes)


def dimensions_of(
    partitions_def: dg.PartitionsDefinition[Any],
) -> dict[str, dg.PartitionsDefinition[Any]]:
    """The definition of each dimension; a single dimension has no name."""
    if isinstance(partitions_def, dg.MultiPartitionsDefinition):
        return {part.name: part.partitions_def for part in partitions_def.partitions_defs}
    return {"": partitions_def}


def keys_by_dimension(partitions_def: dg.PartitionsDefinition[Any], key: str) -> Mapping[str, str]:
    """The parts of a key, by dimension."""
    if isinstance(partitions_def, dg.MultiPartitionsDefinition):
        if not isinstance(key, dg.MultiPartitionKey):
            key = partitions_def.get_partition_key_from_str(key)
        return key.keys_by_dimension
    return {"": key}


def dimension_columns(
    partitions_def: dg.PartitionsDefinition[Any],
    partition_expr: str | Mapping[str, str],
    *,
    owner: str,
) -> dict[str, tuple[str, dg.PartitionsDefinition[Any]]]:
    """Dimension to its column and its definition; a single dimension has no name."""
    dimensions = dimensions_of(partitions_def)
    wanted = f"map each of the dimensions {', '.join(dimensions)} to its column"
    if "" in dimensions:
        wanted = "be one column name, as there is one dimension"
        if not isinstance(partition_expr, str) and len(partition_expr) == 1:
            (partition_expr,) = partition_expr.values()
    given = {"": partition_expr} if isinstance(partition_expr, str) else partition_expr
    if given.keys() == dimensions.keys():
        return {name: (given[name], dimensions[name]) for name in dimensions}
    raise InvalidArgument(f"the partition_expr {partition_expr!r} of {owner} has to {wanted}")


def _find_boxes(cells: Sequence[tuple[str, ...]]) -> list[tuple[tuple[str, ...], ...]]:
    """The fewest products (found greedily) whose union is exactly these cells.

    Cells that differ only in the last coordinate are joined first, then groups with the same set of
    last coordinates: a rectangle becomes one box, and an irregular set never grows into its
    bounding rectangle.
    """
    if not cells:
        return []
    if len(cells[0]) == 1:
        return [(tuple(cell[0] for cell in cells),)]
    rests_by_first: dict[str, list[tuple[str, ...]]] = {}
    for first, *rest in cells:
        rests_by_first.setdefault(first, []).append(tuple(rest))
    firsts_by_rest: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for first, rests in rests_by_first.items():
        firsts_by_rest.setdefault(tuple(sorted(set(rests))), []).append(first)
    return [
        (tuple(firsts), *box)
        for rests, firsts in firsts_by_rest.items()
        for box in _find_boxes(list(rests))
    ]


def _make_slice(
    partitions_def: dg.PartitionsDefinition[Any], keys: Iterable[str], column: str
) -> DimensionSlice:
    distinct = sorted(set(keys))
    if not isinstance(partitions_def, dg.TimeWindowPartitionsDefinition):
        return DimensionSlice(column, tuple(distinct), known_keys=_known_keys(partitions_def))
    # Datetimes of one zone compare by wall clock, which means two instants in the hour that a clock
    # change repeats.
    timed = sorted(
        ((partitions_def.time_window_for_partition_key(key), key) for key in distinct),
        key=lambda pair: pair[0].start.timestamp(),
    )
    return DimensionSlice(
        column, tuple(key for _, key in timed), tuple(window for window, _ in timed)
    )


def _known_keys(partitions_def: dg.PartitionsDefinition[Any]) -> Callable[[], Sequence[str]]:
    if isinstance(partitions_def, dg.StaticPartitionsDefinition):
        return partitions_def.get_partition_keys
    if isinstance(partitions_def, dg.DynamicPartitionsDefinition) and partitions_def.name:
        return cache(partial(_dynamic_keys, partitions_def.name))
    return tuple


def _dynamic_keys(name: str) -> Sequence[str]:
    try:
        instance = dg.AssetExecutionContext.get().instance
    except dg.DagsterInvariantViolationError:
        # Outside of a step.
        return ()
    return tuple(instance.get_dynamic_partitions(name))


def partition_selector(
    partitions_def: dg.PartitionsDefinition[Any],
    partition_expr: str | Mapping[str, str] | None,
    *,
    asset: str,
    owned_rows: Mapping[str, Sequence[str]] | None = None,
) -> SelectPartitions:
    """Selects partitions of an asset by their keys, of the rows that it owns."""

    def select(keys: Iterable[str]) -> PartitionSelection:
        selection = select_partitions(partitions_def, keys, partition_expr, asset=asset)
        return _of_owner(selection, owned_rows or {})

    return select


def owned_selection(owned_rows: Mapping[str, Sequence[str]] | None) -> PartitionSelection | None:
    """The rows that an asset without partitions owns, by column and values; None for all."""
    return _of_owner(PartitionSelection((), ((),)), owned_rows) if owned_rows else None


def _of_owner(
    selection: PartitionSelection, owned_rows: Mapping[str, Sequence[str]]
) -> PartitionSelection:
    owned = [
        DimensionSlice(column, tuple(values), is_dimension=False)
        for column, values in owned_rows.items()
    ]
    return replace(selection, boxes=tuple((*box, *owned) for box in selection.boxes))
