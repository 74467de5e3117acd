"""Which columns of a table get Bloom filters in its data files.

The properties have the names of Parquet's Java library: delta-spark 4.4 passes them on to it, and
refuses any `delta.bloomFilter`.

Spec: Parquet's Bloom filters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import (
    DataType,
    DecimalType,
    PrimitiveType,
    StructType,
    fold_name,
)
from dagster_delta.protocol.statistics.statistics import SchemaLeaf, schema_leaves

BLOOM_PREFIX = "parquet.bloom.filter."
_ENABLED, _RATE, _COUNT = (f"{BLOOM_PREFIX}{name}" for name in ("enabled", "fpp", "expected.ndv"))
_ADAPTIVE = f"{BLOOM_PREFIX}adaptive.enabled"

_FALSE_POSITIVE_RATE = 0.05
"""With it, a filter takes about a byte for each value."""
_WITHOUT_FILTERS = frozenset({"boolean", "float", "double", "variant", "void"})
"""0.0 and -0.0 are equal and have different hashes: Spark 4.2 finds no -0.0 by `= 0.0` in a file
with filters."""


class BloomFilter(msgspec.Struct, frozen=True):
    """The Bloom filters of one column."""

    path: tuple[str, ...]
    """Physical names from the root to the leaf."""
    false_positive_rate: float
    num_values: int | None
    """Distinct values that a row group is expected to have; None: as many as rows."""


def bloom_filters(configuration: TableConfiguration, stored: StructType) -> Iterator[BloomFilter]:
    """The filters of new data files.

    `stored`: logical schema of the columns that the files have.
    """
    properties = configuration.metadata.configuration
    if not any(key.startswith(_ENABLED) for key in properties):
        return
    leaves = list(schema_leaves(stored, configuration.column_mapping_mode))
    count = Counter(".".join(leaf.physical_path) for leaf in leaves)
    for leaf in leaves:
        # A column `a.b` beside a struct a with b: Parquet cannot tell them apart.
        if count[".".join(leaf.physical_path)] > 1 or not may_have_filter(leaf.data_type):
            continue
        if _option_of(properties, leaf, _ENABLED):
            rate = _option_of(properties, leaf, _RATE) or _FALSE_POSITIVE_RATE
            yield BloomFilter(leaf.physical_path, rate, _option_of(properties, leaf, _COUNT))


def _option_of(properties: Mapping[str, str], leaf: SchemaLeaf, name: str) -> Any:  # noqa: ANN401  of the type that its parser gives
    """The option of a column, or that of all columns; None if it is not set or invalid."""
    keys = (*(f"{name}#{column}" for column in _names_of(leaf)), name)
    text = next((properties[key] for key in keys if key in properties), None)
    try:
        return None if text is None else _PARSERS[name](text)
    except ValueError:
        # Another writer has set it.
        return None


def may_have_filter(data_type: DataType) -> bool:
    """Whether equal values of a type have equal hashes, and Arrow writes filters of it."""
    match data_type:
        case PrimitiveType(name):
            return name not in _WITHOUT_FILTERS and not data_type.is_read_only
        case _:
            return isinstance(data_type, DecimalType)


def with_filters(configuration: TableConfiguration, columns: Iterable[str]) -> TableConfiguration:
    """The configuration of a new table with filters for key columns, where these may have them.

    Properties that it has remain.
    """
    given = configuration.metadata.configuration
    if any(key.startswith(BLOOM_PREFIX) for key in given):
        return configuration
    fields = (configuration.data_schema.get(name) for name in columns)
    added = {
        f"{_ENABLED}#{field.name}": "true"
        for field in fields
        if field is not None and may_have_filter(field.data_type)
    }
    if not added:
        return configuration
    # Otherwise those of Spark take a megabyte in a file of a few rows.
    metadata = msgspec.structs.replace(
        configuration.metadata, configuration={**given, **added, _ADAPTIVE: "true"}
    )
    return TableConfiguration(configuration.protocol, metadata)


def check_bloom_filters(
    configuration: TableConfiguration, before: TableConfiguration | None = None
) -> None:
    """Refuse new properties that have no effect: columns that the table lacks or that cannot have
    filters, and invalid values.
    """
    known = {} if before is None else before.metadata.configuration
    for key, text in configuration.metadata.configuration.items():
        if key.startswith(BLOOM_PREFIX) and known.get(key) != text:
            name, _, column = key.partition("#")
            if column:
                _check_column(configuration, key, column)
            try:
                _PARSERS.get(name, str)(text)
            except ValueError:
                raise InvalidArgument(
                    f"the table property {key} cannot be set: {text!r} is not {_KINDS[name]}"
                ) from None


def _check_column(configuration: TableConfiguration, key: str, column: str) -> None:
    leaves = schema_leaves(configuration.data_schema, configuration.column_mapping_mode)
    found = next((leaf for leaf in leaves if column in _names_of(leaf)), None)
    if found is None:
        problem = "the table has no such column in its data files; names are case-sensitive"
    elif not may_have_filter(found.data_type):
        problem = f"columns of type {found.data_type} have no Bloom filters"
    else:
        return
    raise InvalidArgument(f"the table property {key} cannot be set: {problem}", column=column)


def _names_of(leaf: SchemaLeaf) -> tuple[str, str]:
    """Logical and physical: Spark takes the physical one, which no RENAME changes."""
    return ".".join(leaf.logical_path), ".".join(leaf.physical_path)


def _parse_flag(text: str) -> bool:
    if fold_name(text.strip()) not in ("true", "false"):
        raise ValueError(text)
    return fold_name(text.strip()) == "true"


def _parse_rate(text: str) -> float:
    rate = float(text)
    if not 0 < rate < 1:
        raise ValueError(text)
    return rate


def _parse_count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise ValueError(text)
    return count


_PARSERS: Mapping[str, Callable[[str], object]] = {
    _ENABLED: _parse_flag,
    _ADAPTIVE: _parse_flag,
    _RATE: _parse_rate,
    _COUNT: _parse_count,
}
_KINDS = {
    _ENABLED: "'true' or 'false'",
    _ADAPTIVE: "'true' or 'false'",
    _RATE: "a number between 0 and 1",
    _COUNT: "a whole number above 0",
}
