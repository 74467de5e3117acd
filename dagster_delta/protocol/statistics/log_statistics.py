"""Statistics of the files in a checkpoint: parsed ones first, JSON as the fallback.

Spec: Checkpoint Format; Per-file Statistics.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Protocol

import msgspec
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.protocol.statistics.statistics import (
    StatisticsColumn,
    parse_statistics_json,
    project_parsed_statistics,
)
from dagster_delta.protocol.values.arrow_columns import string_column, whole_array

_ENCODER = msgspec.json.Encoder(decimal_format="number")


class LoggedAdds(Protocol):
    """Rows of a checkpoint, as in `CheckpointPart`."""

    def has(self, *path: str) -> bool:
        """Whether there is a column at this path of names."""

    def read_adds(
        self, columns: Sequence[str], keep: pa.BooleanArray
    ) -> dict[str, pa.ChunkedArray]:
        """Columns of LIVE_FILE_SCHEMA in the chosen rows, each as a `pa.ChunkedArray`."""

    def read_parsed_statistics(
        self, paths: Sequence[Sequence[str]] | None, keep: pa.BooleanArray
    ) -> pa.ChunkedArray | None:
        """`add.stats_parsed` of the chosen rows with the leaves at these paths."""


def checkpoint_statistics(
    part: LoggedAdds, keep: pa.BooleanArray, columns: Sequence[StatisticsColumn]
) -> pa.Table:
    """The `pa.Table` that `parse_statistics_json` would make for the chosen files of a part."""
    parsed = part.read_parsed_statistics(statistics_leaves(columns), keep)
    if parsed is None:
        return parse_statistics_json(_texts(part, keep), columns)
    table = project_parsed_statistics(parsed, columns)
    unknown = pc.is_null(table.column("num_records"))
    # Files by writers that wrote only JSON have no parsed statistics.
    if not pc.any(unknown).as_py() or not part.has("add", "stats"):
        return table
    filled = parse_statistics_json(pc.filter(_texts(part, keep), unknown), columns)
    mask = whole_array(unknown)
    merged = [
        pc.replace_with_mask(whole_array(table.column(i)), mask, whole_array(filled.column(i)))
        for i in range(table.num_columns)
    ]
    return pa.Table.from_arrays(merged, schema=table.schema)


def statistics_leaves(columns: Sequence[StatisticsColumn]) -> list[tuple[str, ...]]:
    """Paths below `stats_parsed` that `checkpoint_statistics` needs."""
    groups = ("minValues", "maxValues", "nullCount", "nullCounts")
    leaves = [(group, *column.path) for column in columns for group in groups]
    return [("numRecords",), ("tightBounds",), *leaves]


def _texts(part: LoggedAdds, keep: pa.BooleanArray) -> pa.ChunkedArray:
    return part.read_adds(["stats"], keep)["stats"]


def checkpoint_statistics_json(part: LoggedAdds, keep: pa.BooleanArray) -> pa.ChunkedArray:
    """Statistics as JSON text, a `pa.ChunkedArray`: made from the parsed ones if needed."""
    texts = _texts(part, keep)
    if not texts.null_count or not part.has("add", "stats_parsed"):
        return texts
    parsed = part.read_parsed_statistics(None, keep)
    absent = whole_array(pc.is_null(texts))
    unwritten = pc.filter(whole_array(parsed), absent)
    spelled = string_column([_spell(row) for row in unwritten.to_pylist()])
    return pa.chunked_array([pc.replace_with_mask(whole_array(texts), absent, spelled)])


def _spell(statistics: Mapping[str, object] | None) -> str | None:
    if statistics is None:
        return None
    named = {"nullCount" if key == "nullCounts" else key: statistics[key] for key in statistics}
    return _ENCODER.encode(_plain(named) or {}).decode()


def _plain(value: object) -> object:
    # Omit values that JSON cannot represent: unknown statistics are always correct.
    match value:
        case dict():
            items = {key: _plain(item) for key, item in value.items()}
            known = {key: item for key, item in items.items() if item is not None}
            # The bounds of a variant are two binaries here, and not an object in JSON.
            return known if known or not value else None
        case float() if not math.isfinite(value):
            return None
        case bool() | int() | float() | str() | Decimal():
            return value
        case dt.datetime():
            text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
            return text if value.tzinfo is None else f"{text}Z"
        case dt.date():
            return value.isoformat()
        case _:
            return None
