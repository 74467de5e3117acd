"""From the partitions that a commit changed to the partition keys of an asset."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import MAXYEAR, UTC, date, datetime, time, timedelta
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo

import dagster as dg
import msgspec

from dagster_delta import clock
from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.metadata_keys import first_names
from dagster_delta.orchestration.partitions.partitions import (
    KEY_SEPARATOR,
    dimension_columns,
    dimensions_of,
    keys_by_dimension,
)
from dagster_delta.orchestration.partitions.predicates import days_of_window

PartitionKeysOf: TypeAlias = Callable[[Mapping[str, str | None]], Iterable[str]]
"""From the values of one table partition, by column, to partition keys."""

_FIRST_YEAR = 1001
"""Dagster cannot read its own keys of years below 1000, in which a window of this one may begin."""
_DAY_S = 86_400


class MappedKeys(msgspec.Struct, frozen=True):
    """Partition keys of some table partitions."""

    keys: list[str] = msgspec.field(default_factory=list)
    """Distinct keys, in the order of the table's partitions."""
    later: list[str] = msgspec.field(default_factory=list)
    """Keys of time windows that have not ended, so that the asset does not have them yet."""
    unmapped: list[Mapping[str, str | None]] = msgspec.field(default_factory=list)
    """Table partitions that belong to no partition of the asset."""


class PartitionMapping:
    """Which partitions of an asset belong to a partition of a table: by the partition column with
    the key that `partition_expr` names (for multi-partitions by dimension), or by a function.
    """

    def __init__(
        self,
        partitions_def: dg.PartitionsDefinition[Any],
        partition_expr: str | Mapping[str, str] | None,
        keys_of: PartitionKeysOf | None,
    ) -> None:
        if (partition_expr is None) == (keys_of is None):
            raise InvalidArgument(
                "to turn changed partitions into partition keys, give either partition_expr (the "
                "partition column of the table) or partition_keys (a function)"
            )
        self._partitions_def = partitions_def
        self._keys_of = keys_of
        self._dimensions = (
            dimension_columns(partitions_def, partition_expr, owner="the table")
            if partition_expr
            else {}
        )

    @property
    def columns(self) -> list[str]:
        """The columns that hold a part of the key; none for a function."""
        return [column for column, _ in self._dimensions.values()]

    def map(
        self,
        partitions: Iterable[Mapping[str, str | None]],
        *,
        timestamp_columns: Collection[str] = (),
    ) -> MappedKeys:
        """The keys of some table partitions. `timestamp_columns` are those of type timestamp, whose
        values are in UTC if they name no zone.
        """
        mapped = MappedKeys()
        for values in partitions:
            found = self._map_values(values, timestamp_columns)
            keys = [key for key in found if self.has(key)]
            later = [key for key in found if key not in keys and self.will_have(key)]
            if not keys and not later:
                mapped.unmapped.append(values)
            mapped.keys.extend(key for key in keys if key not in mapped.keys)
            mapped.later.extend(key for key in later if key not in mapped.later)
        return mapped

    def has(self, key: str) -> bool:
        """Whether the asset has a partition, or gets it, as a dynamic one, when it is requested."""
        sides = self._split_key(key)
        return bool(sides) and all(_has_key(*side) for side in sides)

    def will_have(self, key: str) -> bool:
        """Whether the asset has a partition, or has it when a time window has ended."""
        sides = self._split_key(key)
        return bool(sides) and all(_has_key(*side) or _will_have(*side) for side in sides)

    def _split_key(self, key: str) -> list[tuple[dg.PartitionsDefinition[Any], str]]:
        """The dimensions, each with its part of a key; none for a key of other dimensions, as a
        cursor may have it from before the definition was changed.
        """
        dimensions = dimensions_of(self._partitions_def)
        if len(dimensions) > 1 and key.count(KEY_SEPARATOR) + 1 != len(dimensions):
            return []
        parts = keys_by_dimension(self._partitions_def, key)
        return [(definition, parts[name]) for name, definition in dimensions.items()]

    def dynamic_requests(
        self, keys: Iterable[str], instance: dg.DagsterInstance
    ) -> list[dg.AddDynamicPartitionsRequest]:
        """Requests to add the dynamic partitions among these keys that do not exist yet."""
        parts = [keys_by_dimension(self._partitions_def, key) for key in keys]
        requests = []
        for dimension, definition in dimensions_of(self._partitions_def).items():
            if isinstance(definition, dg.DynamicPartitionsDefinition) and definition.name:
                known = set(instance.get_dynamic_partitions(definition.name))
                wanted = dict.fromkeys(part[dimension] for part in parts)
                if missing := [key for key in wanted if key not in known]:
                    requests.append(definition.build_add_request(missing))
        return requests

    def _map_values(
        self, values: Mapping[str, str | None], timestamp_columns: Collection[str]
    ) -> list[str]:
        if self._keys_of is not None:
            return [str(key) for key in self._keys_of(values)]
        sides = [
            _dimension_keys(definition, column, values, is_instant=column in timestamp_columns)
            for column, definition in self._dimensions.values()
        ]
        if "" in self._dimensions:
            return sides[0]
        return [
            str(dg.MultiPartitionKey(dict(zip(self._dimensions, parts, strict=True))))
            for parts in itertools.product(*sides)
        ]


def keys_of_input(context: dg.InputContext) -> Sequence[str]:
    """The partition keys to load for an input: those of Dagster that its mapping asks for. Where
    `exclusions` leave out the start of a window, Dagster 1.13.27 adds the partition before it.
    """
    keys, definition = context.asset_partition_keys, context.asset_partitions_def
    if not any(getattr(part, "exclusions", None) for part in dimensions_of(definition).values()):
        return keys
    asked = _keys_asked_for(context.asset_key, definition)
    left_out = [key for key in keys if asked is not None and key not in asked]
    if left_out:
        context.log.warning(
            f"the partitions {first_names(left_out)} of {context.asset_key.to_user_string()} are "
            "not loaded: Dagster gives them for windows that they do not overlap, next to those "
            "that the exclusions of the partitions definition leave out"
        )
    return [key for key in keys if key not in left_out]


def _keys_asked_for(
    key: dg.AssetKey, definition: dg.PartitionsDefinition[Any]
) -> Collection[str] | None:
    """The keys of an asset for the running step, as if no window were excluded; None if its mapping
    is not by time windows.
    """
    try:
        step = dg.AssetExecutionContext.get()
        specs, run_keys = step.assets_def.specs, step.partition_keys
    except dg.DagsterInvariantViolationError:
        # Outside of a step of a partitioned asset.
        return None
    asked: set[str] = set()
    for spec in specs:
        for dep in spec.deps:
            target = spec.partitions_def
            if dep.asset_key != key or target is None:
                continue
            mapping = dep.partition_mapping or _default_mapping(definition, target)
            if not isinstance(mapping, _MAPPINGS_OF_WINDOWS):
                return None
            found = mapping.get_upstream_mapped_partitions_result_for_partitions(
                target.subset_with_partition_keys(run_keys), target, _without_exclusions(definition)
            )
            asked.update(found.partitions_subset.get_partition_keys())
    return asked or None


_MAPPINGS_OF_WINDOWS = (
    dg.TimeWindowPartitionMapping,
    dg.MultiPartitionMapping,
    dg.MultiToSingleDimensionPartitionMapping,
)


def _default_mapping(
    upstream: dg.PartitionsDefinition[Any], downstream: dg.PartitionsDefinition[Any]
) -> dg.PartitionMapping | None:
    """The mapping that Dagster chooses for windows of two lengths; None for other partitions."""
    if all(isinstance(part, dg.TimeWindowPartitionsDefinition) for part in (upstream, downstream)):
        return dg.TimeWindowPartitionMapping()
    if len(dimensions_of(upstream)) != len(dimensions_of(downstream)):
        return dg.MultiToSingleDimensionPartitionMapping()
    return None


def _without_exclusions(definition: dg.PartitionsDefinition[Any]) -> dg.PartitionsDefinition[Any]:
    if isinstance(definition, dg.MultiPartitionsDefinition):
        parts = dimensions_of(definition).items()
        return dg.MultiPartitionsDefinition(
            {name: _without_exclusions(part) for name, part in parts}
        )
    if not isinstance(definition, dg.TimeWindowPartitionsDefinition):
        return definition
    return dg.TimeWindowPartitionsDefinition(
        start=definition.start,
        fmt=definition.fmt,
        end=definition.end,
        timezone=definition.timezone,
        end_offset=definition.end_offset,
        cron_schedule=definition.cron_schedule,
    )


def _has_key(definition: dg.PartitionsDefinition[Any], key: str) -> bool:
    return isinstance(definition, dg.DynamicPartitionsDefinition) or (
        definition.has_partition_key(key)
    )


def _will_have(definition: dg.PartitionsDefinition[Any], key: str) -> bool:
    """Whether the key is that of a time window which has begun, or begins within a day: clocks and
    time zones differ. What lies further ahead is more often a mistake.
    """
    if not isinstance(definition, dg.TimeWindowPartitionsDefinition):
        return False
    try:
        start = definition.time_window_for_partition_key(key).start
    except (ValueError, OverflowError):
        return False
    last = definition.get_last_partition_window()
    return (
        # Dagster takes any time for the key of the window after it.
        definition.get_partition_key_for_timestamp(start.timestamp()) == key
        and (definition.start if last is None else last.end) <= start
        and start.timestamp() < clock.now_ms() / 1000 + _DAY_S
        and (definition.end is None or start < definition.end)
    )


def _dimension_keys(
    definition: dg.PartitionsDefinition[Any],
    column: str,
    values: Mapping[str, str | None],
    *,
    is_instant: bool,
) -> list[str]:
    if column not in values:
        columns = ", ".join(values) or "no column"
        raise InvalidArgument(
            f"the table is partitioned by {columns} and not by {column}, so its commits do not "
            "show which partitions changed; name one of its partition columns, or give "
            "partition_keys",
            column=column,
        )
    text = values[column]
    if text is None:
        return []
    if isinstance(definition, dg.TimeWindowPartitionsDefinition):
        return _window_keys(definition, text, column, is_instant=is_instant)
    return [text]


def _window_keys(
    definition: dg.TimeWindowPartitionsDefinition, text: str, column: str, *, is_instant: bool
) -> list[str]:
    """The keys of the time windows that a partition value belongs to: of the key itself, of a date
    as the predicates of partitions read it, or of an instant.
    """
    is_key = not is_instant and _is_key(definition, text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        if key := text if is_key else _key_of_digits(definition, text):
            return [key]
        raise InvalidArgument(
            f"{text!r} in the partition column {column} is not a date or time, so it belongs to no "
            "time window; give partition_keys to say which",
            column=column,
        ) from None
    if not _FIRST_YEAR <= moment.year < MAXYEAR:
        # Such as 9999-12-31 for no date, or 0202-01-01: Dagster cannot compute its window.
        return []
    if is_instant or not _is_date(text):
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC if is_instant else ZoneInfo(definition.timezone))
        if is_key:
            return [text]
        found = _key_at(definition, moment)
        return [] if found is None else [found]
    keys = _keys_of_day(definition, moment.date())
    # A key such as 2024-02-01 of the format %Y-%d-%m is also another date.
    if is_key and text not in keys:
        raise InvalidArgument(
            f"{text!r} in the partition column {column} is a partition key, and as a date it "
            f"belongs to {', '.join(keys) or 'no key'}; give partition_keys to say which",
            column=column,
        )
    return [text] if is_key else keys


def _key_of_digits(definition: dg.TimeWindowPartitionsDefinition, digits: str) -> str:
    """The key whose digits an integer column holds: 2024-01 of 202401; empty if there is none."""
    try:
        moment = datetime.strptime(digits, "".join(re.findall("%.", definition.fmt)))  # noqa: DTZ007
    except ValueError:
        return ""
    key = moment.strftime(definition.fmt)
    return key if re.sub("[^0-9]", "", key) == digits else ""


def _is_key(definition: dg.TimeWindowPartitionsDefinition, text: str) -> bool:
    try:
        return definition.has_partition_key(text)
    except (ValueError, OverflowError):
        return False


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _key_at(definition: dg.TimeWindowPartitionsDefinition, moment: datetime) -> str | None:
    """The key of the window that holds a moment; None if no window does: for a moment in a window
    that `exclusions` leave out, Dagster 1.13.27 answers with the window before it.
    """
    key = definition.get_partition_key_for_timestamp(moment.timestamp())
    window = definition.time_window_for_partition_key(key)
    holds = window.start.timestamp() <= moment.timestamp() < window.end.timestamp()
    return key if holds else None


def _keys_of_day(definition: dg.TimeWindowPartitionsDefinition, day: date) -> list[str]:
    """The windows of a day or longer that mean this day in a date column, and every shorter window
    that holds a part of it.
    """
    start, end = (
        datetime.combine(date_, time(0), ZoneInfo(definition.timezone))
        for date_ in (day, day + timedelta(days=1))
    )
    begin_on_day = definition.get_partition_keys_in_time_window(dg.TimeWindow(start, end))
    keys = []
    for key in dict.fromkeys((_key_at(definition, start), *begin_on_day)):
        if key is None:
            continue
        window = definition.time_window_for_partition_key(key)
        first, after = days_of_window(window)
        # Where a clock skips half an hour, Dagster also gives a key of the window after it.
        if (first == after or first <= day < after) and _key_at(definition, window.start) == key:
            keys.append(key)
    return keys
