"""REORG: rewrites the files that hold deleted rows, dropped columns, or values of a type from
before a widening.

Spec: Deletion Vectors; Column Mapping; Type Widening.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal, get_args

import msgspec
import pyarrow as pa

from dagster_delta.clock import now_ms
from dagster_delta.engines import engine_for
from dagster_delta.engines.engine import Engine
from dagster_delta.engines.footers import map_footers
from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.features.column_mapping import physical_name
from dagster_delta.protocol.features.row_tracking import tracked_configuration
from dagster_delta.protocol.features.type_widening import type_changes
from dagster_delta.protocol.schema import (
    ArrayType,
    DataType,
    MapType,
    StructType,
    fold_name,
    walk_fields,
)
from dagster_delta.protocol.values.arrow_columns import boolean_column
from dagster_delta.protocol.values.arrow_schema import to_arrow_type
from dagster_delta.table.catalog_rules import check_maintenance
from dagster_delta.table.operations.rewrite_files import (
    GroupRewrite,
    OptimizeProgress,
    OptimizeResult,
    choose_target_size,
    pack_files,
    rewrite_groups,
)
from dagster_delta.table.transaction.transaction import Transaction

if TYPE_CHECKING:
    from dagster_delta.clock import Clock
    from dagster_delta.protocol.table_properties import ColumnMappingMode
    from dagster_delta.table.read.snapshot import Snapshot
    from dagster_delta.table.table_handle import TableHandle


Purge = Literal["deletion_vectors", "dropped_columns", "widened_types"]


def reorg(
    table: TableHandle,
    /,
    where: str | None = None,
    *,
    purge: Collection[Purge] = ("deletion_vectors", "dropped_columns", "widened_types"),
    target_file_size: int | None = None,
    engine: Literal["arrow", "spark"] | None = None,
    dry_run: bool = False,
    commit_info: Mapping[str, object] | None = None,
    on_progress: Callable[[OptimizeProgress], None] | None = None,
) -> OptimizeResult:
    """Rewrite the files that hold deleted rows, dropped columns, or values of a type from
    before a widening. No row changes, and other files stay.

    Older versions keep their files until VACUUM deletes them: only then is what was purged
    gone from storage.

    Args:
        where: Spark SQL; only files that may hold rows that satisfy it are considered.
        purge: what to remove: `deletion_vectors`, `dropped_columns` and `widened_types`; the
            last two read the footer of every file.
        target_file_size: as for `optimize`.
        engine: as for `optimize`.
        dry_run: as for `optimize`.
        commit_info: recorded in each commitInfo beside this library's own fields.
        on_progress: called after each commit.

    Raises:
        InvalidArgument: an option is invalid.
        TableNotFound, SchemaMismatch, InvalidTable, DataFileMissing, CorruptDeletionVector,
        StorageFailure, UnsupportedFeature, ConditionalPutUnsupported, CommitStateUnknown: as
        for `optimize`.
    """
    options = ReorgOptions(
        where=where,
        purge=purge,
        target_file_size_bytes=target_file_size,
        engine=engine_for(None, engine),
        dry_run=dry_run,
        commit_info=commit_info,
        on_progress=on_progress,
    )
    result = reorganize_table(table._existing(), options, clock=now_ms)
    table._snapshot = result.snapshot
    return result


class ReorgOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the caller."""

    engine: Engine
    where: str | None = None
    purge: Collection[Purge]
    """What is removed from files."""
    target_file_size_bytes: int | None = None
    commit_info: Mapping[str, object] | None = None
    on_progress: Callable[[OptimizeProgress], None] | None = None
    dry_run: bool = False


def reorganize_table(snapshot: Snapshot, options: ReorgOptions, *, clock: Clock) -> OptimizeResult:
    """Rewrite the files that hold something to purge.

    After an error, earlier commits of this REORG remain.
    """
    # This refuses tables that the library cannot write.
    Transaction(snapshot.store, snapshot, clock=clock)
    check_maintenance(snapshot.store, "DATA_REORGANIZATION", "REORG")
    target = choose_target_size(snapshot.configuration, options.target_file_size_bytes)
    options.engine.check_reachable(snapshot.store)
    files = snapshot.scan(where=options.where).files()
    files = find_outdated_files(snapshot, files, options.purge)
    everything = boolean_column([True] * files.num_rows)
    groups = pack_files(files, everything, everything, max_bytes=target)
    rewrite = GroupRewrite(
        operation="REORG",
        parameters={
            "predicate": [] if options.where is None else [options.where],
            "applyPurge": True,
        },
        engine=options.engine,
        target_size_bytes=target,
        commit_info=options.commit_info,
        on_progress=options.on_progress,
        dry_run=options.dry_run,
    )
    return rewrite_groups(snapshot, groups, rewrite, clock=clock)


def find_outdated_files(snapshot: Snapshot, files: pa.Table, purge: Collection[Purge]) -> pa.Table:
    """The files that hold something to purge."""
    if isinstance(purge, str) or not set(purge) <= set(get_args(Purge)) or not purge:
        names = ", ".join(get_args(Purge))
        raise InvalidArgument(f"purge lists what is purged, of {names}; not {purge!r}")
    chosen = [False] * files.num_rows
    if "deletion_vectors" in purge:
        chosen = files["deletion_vector"].is_valid().to_pylist()
    configuration = tracked_configuration(snapshot.configuration)
    schema, mode = configuration.schema, configuration.column_mapping_mode
    was_widened = any(type_changes(field) for _, field in walk_fields(schema))
    if "dropped_columns" in purge or ("widened_types" in purge and was_widened):
        doubtful = files.filter(boolean_column([not is_chosen for is_chosen in chosen]))
        rest = map_footers(
            snapshot.store,
            doubtful["path"].to_pylist(),
            lambda found: any(kind in purge for kind in _find_in_fields(found, schema, mode)),
        )
        left = iter(rest)
        chosen = [is_chosen or next(left) for is_chosen in chosen]
    return files.filter(boolean_column(chosen))


def _find_in_fields(
    found: Iterable[pa.Field], schema: StructType, mode: ColumnMappingMode
) -> Iterator[Purge]:
    """What fields of a file hold that those of the table do not."""
    known = {fold_name(physical_name(field, mode)): field for field in schema}
    for column in found:
        field = known.get(fold_name(column.name))
        if field is None:
            yield "dropped_columns"
        else:
            is_widened = bool(type_changes(field))
            yield from _find_in_parts(column.type, field.data_type, mode, is_widened=is_widened)


def _find_in_parts(
    found: pa.DataType, expected: DataType, mode: ColumnMappingMode, *, is_widened: bool
) -> Iterator[Purge]:
    if isinstance(expected, StructType) and pa.types.is_struct(found):
        fields = (found.field(index) for index in range(found.num_fields))
        yield from _find_in_fields(fields, expected, mode)
    elif isinstance(expected, ArrayType) and pa.types.is_list(found):
        element = expected.element_type
        yield from _find_in_parts(found.value_type, element, mode, is_widened=is_widened)
    elif isinstance(expected, MapType) and pa.types.is_map(found):
        parts = (found.key_type, expected.key_type), (found.item_type, expected.value_type)
        for part, wanted in parts:
            yield from _find_in_parts(part, wanted, mode, is_widened=is_widened)
    elif is_widened and found != to_arrow_type(expected):
        yield "widened_types"
