"""Files from before a change of the schema: with deleted rows, dropped columns or types from before
a widening, which REORG rewrites, or without the columns that were added later; and the move of
their rows to other files.

Spec: Deletion Vectors; Column Mapping; Type Widening; Add File and Remove File (dataChange).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.engines import embedded_engine
from dagster_delta.engines.footers import has_any, lacked_fields, map_footers, may_lack
from dagster_delta.engines.plans import WriteResult
from dagster_delta.engines.statements.row_tracking import keep_row_ids
from dagster_delta.errors import InvalidArgument, InvalidTable
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
from dagster_delta.protocol.statistics.statistics import parse_statistics_json
from dagster_delta.protocol.values.arrow_columns import boolean_column
from dagster_delta.protocol.values.arrow_values import integer_scalar
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.table.operations.write_planning import write_spec
from dagster_delta.table.read.file_planner import read_plan
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.transaction.file_actions import tombstones
from dagster_delta.table.transaction.transaction import Transaction

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


def stage_moved_rows(
    transaction: Transaction, files: pa.Table, configuration: TableConfiguration
) -> WriteResult:
    """Stage that the rows of some files are in new files, written under another configuration.

    Rows keep their ids. On an error, new files are deleted as far as the store allows. The
    transaction is on the snapshot of the files; columns of the new configuration have the names of
    the old one.
    """
    snapshot = transaction.snapshot
    assert snapshot is not None  # noqa: S101  the files are of one
    # The rows are in the table, so they have passed its constraints.
    spec = write_spec(configuration, snapshot.store.location, check_rows=False)
    plan, spec = keep_row_ids(read_plan(snapshot, files, None), spec)
    engine = embedded_engine()
    written = engine.write(engine.read(plan), spec, store=snapshot.store)
    transaction.stage_written(
        msgspec.structs.replace(file, data_change=False) for file in written.files
    )
    transaction.declare_row_ids_kept()
    with transaction.created_files:
        check_no_row_lost(snapshot, files, written)
    transaction.stage_removed(tombstones(files, transaction.clock(), data_change=False))
    return written


def check_no_row_lost(snapshot: Snapshot, files: pa.Table, written: WriteResult) -> None:
    """Compare the rows that were written with the rows in the log, before the old files are
    removed.
    """
    counts = parse_statistics_json(files["stats"], ())["num_records"]
    deleted = pc.fill_null(
        pc.struct_field(files["deletion_vector"], "cardinality"), integer_scalar(0)
    )
    expected = pc.sum(pc.subtract(counts, deleted), skip_nulls=False).as_py()
    if expected is not None and expected != written.num_rows:
        raise InvalidTable(
            f"the log counts {expected} rows in {files.num_rows} files, which hold "
            f"{written.num_rows}: statistics or a deletion vector are wrong. Nothing was changed; "
            "find the file with a full scan, and write it again from its source",
            table=snapshot.store.location.uri,
            version=snapshot.version,
        )
