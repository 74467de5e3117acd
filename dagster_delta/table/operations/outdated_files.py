"""Files from before a change of the schema: with deleted rows, dropped columns or types from before
a widening, which REORG rewrites, or without the columns that were added later.

Spec: Deletion Vectors; Column Mapping; Type Widening.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

import pyarrow as pa

from dagster_delta.engines.footers import has_any, lacked_fields, map_footers, may_lack
from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.features.column_mapping import physical_arrow_schema, physical_name
from dagster_delta.protocol.features.existing_defaults import EXISTING_DEFAULT_KEY
from dagster_delta.protocol.features.row_tracking import tracked_configuration
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.features.type_widening import type_changes
from dagster_delta.protocol.schema import (
    ArrayType,
    DataType,
    MapType,
    StructType,
    walk_fields,
)
from dagster_delta.protocol.values.arrow_columns import boolean_column
from dagster_delta.protocol.values.partition_values import decode_path

if TYPE_CHECKING:
    from dagster_delta.protocol.table_properties import ColumnMappingMode
    from dagster_delta.table.read.snapshot import Snapshot

Purge = Literal["deletion_vectors", "dropped_columns", "widened_types"]


def outdated_files(snapshot: Snapshot, files: pa.Table, purge: Collection[Purge]) -> pa.Table:
    """The files that hold something to purge."""
    if isinstance(purge, str) or not set(purge) <= set(get_args(Purge)) or not purge:
        names = ", ".join(get_args(Purge))
        raise InvalidArgument(f"purge lists what is purged, of {names}; not {purge!r}")
    chosen = [False] * files.num_rows
    if "deletion_vectors" in purge:
        chosen = files["deletion_vector"].is_valid().to_pylist()
    tests: list[Callable[[pa.Schema], bool]] = []
    if "dropped_columns" in purge:
        configuration = tracked_configuration(snapshot.configuration)
        schema, mode = configuration.schema, configuration.column_mapping_mode
        tests.append(lambda found: _holds_unknown(list(found), schema, mode))
    if "widened_types" in purge and (expected := _widened_types(snapshot.configuration)):
        tests.append(lambda found: _is_of_old_types(found, expected))
    if tests:
        doubtful = files.filter(boolean_column([not is_chosen for is_chosen in chosen]))
        paths = doubtful["path"].to_pylist()
        found = map_footers(
            snapshot.store, paths, lambda schema: any(test(schema) for test in tests)
        )
        rest = iter(found)
        chosen = [is_chosen or next(rest) for is_chosen in chosen]
    return files.filter(boolean_column(chosen))


def files_of_old_types(snapshot: Snapshot, files: pa.Table) -> pa.Table:
    """The files with a column in a type from before a widening; reads the footers."""
    purge: tuple[Purge, ...] = ("widened_types",)
    return outdated_files(snapshot, files, purge)


def _holds_unknown(found: list[pa.Field], schema: StructType, mode: ColumnMappingMode) -> bool:
    known = {physical_name(field, mode).casefold(): field for field in schema}
    return any(
        (expected := known.get(column.name.casefold())) is None
        or _holds_unknown_inside(column.type, expected.data_type, mode)
        for column in found
    )


def _holds_unknown_inside(found: pa.DataType, expected: DataType, mode: ColumnMappingMode) -> bool:
    if isinstance(expected, StructType) and pa.types.is_struct(found):
        return _holds_unknown([found.field(i) for i in range(found.num_fields)], expected, mode)
    if isinstance(expected, ArrayType) and pa.types.is_list(found):
        return _holds_unknown_inside(found.value_type, expected.element_type, mode)
    if isinstance(expected, MapType) and pa.types.is_map(found):
        return _holds_unknown_inside(
            found.key_type, expected.key_type, mode
        ) or _holds_unknown_inside(found.item_type, expected.value_type, mode)
    return False


def _widened_types(configuration: TableConfiguration) -> dict[str, list[Any]]:
    """The leaf types of the columns whose type was widened, by physical name."""
    widened = (
        column
        for column in configuration.data_schema
        if any(type_changes(field) for _, field in walk_fields(StructType((column,))))
    )
    columns = physical_arrow_schema(StructType(tuple(widened)), configuration.column_mapping_mode)
    return {column.name: list(_leaf_types(column.type)) for column in columns}


def _is_of_old_types(found: pa.Schema, expected: dict[str, list[Any]]) -> bool:
    types = {column.name: column.type for column in found}
    return any(
        name in types and list(_leaf_types(types[name])) != leaves
        for name, leaves in expected.items()
    )


def _leaf_types(arrow_type: pa.DataType) -> Iterator[Any]:
    if arrow_type.num_fields:
        for index in range(arrow_type.num_fields):
            yield from _leaf_types(arrow_type.field(index).type)
    else:
        yield arrow_type


@dataclass(slots=True)
class OlderFiles:
    """Finds the files whose rows take a default when they are read; caches its results."""

    _known: dict[tuple[str, str], bool] = field(default_factory=dict)
    """Whether a file lacks a column, by its path and the schema."""

    def of(self, snapshot: Snapshot) -> pa.Table:
        """The live files that lack a column which has a default in them, as LIVE_FILE_SCHEMA."""
        configuration = snapshot.configuration
        text = configuration.metadata.schema_string
        files = snapshot.live_files()
        if EXISTING_DEFAULT_KEY not in text:
            return files.slice(0, 0)
        schema, mode = configuration.schema, configuration.column_mapping_mode
        doubtful = files.filter(may_lack(files, schema, mode))
        paths = doubtful["path"].to_pylist()
        new = [path for path in paths if (path, text) not in self._known]
        for path, lacked in zip(new, lacked_fields(snapshot.store, new, schema, mode), strict=True):
            self._known[path, text] = bool(lacked)
        return doubtful.filter(boolean_column([self._known[path, text] for path in paths]))


def check_unknown_to_files(
    snapshot: Snapshot, after: TableConfiguration, columns: Sequence[tuple[str, ...]]
) -> None:
    """Check that no file has a column with the name of a new one.

    Under column mapping this is impossible, because the column gets a new name in files. Without
    it, a file may have columns that were never in the schema. `after` is the configuration with
    them.
    """
    paths = snapshot.live_files(["path"])["path"].to_pylist()
    found = has_any(snapshot.store, paths, after.schema, after.column_mapping_mode, columns)
    holding = [path for path, has in zip(paths, found, strict=True) if has]
    if holding:
        names = ", ".join(".".join(path) for path in columns)
        raise InvalidArgument(
            f"{len(holding)} data files have a column called {names} that the table does not know, "
            'and would show its values instead of the default; pass existing_rows="rewrite", or '
            "set delta.columnMapping.mode = name first",
            table=snapshot.store.location.uri,
            version=snapshot.version,
            column=names,
            file=decode_path(holding[0]),
        )
