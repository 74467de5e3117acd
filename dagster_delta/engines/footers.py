"""Reads from the footers of data files what the log lacks: their number of rows and their columns.

Spec: Per-file Statistics; footers of data files are part of the Parquet format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.parquet.opened_file import naming_data_file, read_data_footer
from dagster_delta.parquet.projection import num_steps_found as num_steps_found
from dagster_delta.protocol.features.column_mapping import physical_name
from dagster_delta.protocol.features.existing_defaults import fields_with_existing_default
from dagster_delta.protocol.schema import StructType
from dagster_delta.protocol.statistics.statistics import (
    StatisticsColumn,
    is_name_in_collections,
    parse_statistics_json,
)
from dagster_delta.protocol.table_properties import ColumnMappingMode
from dagster_delta.protocol.values.arrow_values import every
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.storage.object_store import ObjectStore

_FOOTER_READERS = 16


def count_file_rows(store: ObjectStore, path: str) -> int:
    """The rows of a data file, deleted ones counted.

    `path`: of the file, decoded.

    Raises:
        DataFileMissing, InvalidTable, StorageFailure.
    """
    with naming_data_file(store, path):
        return int(read_data_footer(store.open_input(path)).metadata.num_rows)


def count_live_rows(store: ObjectStore, files: pa.Table) -> list[int]:
    """The rows of each file that are not deleted, by the log if it has them. Raises as
    `count_file_rows` does.

    `files`: `pa.Table` with the columns of `LIVE_FILE_SCHEMA`.
    """
    counts = parse_statistics_json(files["stats"], ())["num_records"].to_pylist()
    deleted = pc.struct_field(files["deletion_vector"], "cardinality").to_pylist()
    return [
        (count_file_rows(store, decode_path(path)) if count is None else count) - (hidden or 0)
        for path, count, hidden in zip(files["path"].to_pylist(), counts, deleted, strict=True)
    ]


def may_lack(files: pa.Table, schema: StructType, mode: ColumnMappingMode) -> pa.BooleanArray:
    """Which files may lack a field that has a default, by the log alone.

    If statistics have the null count of a column, the file has it. If they do not, it is unknown.

    `schema`: logical schema, or the columns of it that matter.

    Returns:
        `pa.BooleanArray`, one value per file.
    """
    columns = _defaulted_columns(schema, mode)
    unknown = every(False, files.num_rows)
    if not columns:
        return unknown
    statistics = parse_statistics_json(files["stats"], columns)
    for index in range(len(columns)):
        counts = statistics[f"null_count.{index}"].combine_chunks()
        unknown = pc.or_(unknown, pc.is_null(counts))
    return unknown


def _defaulted_columns(schema: StructType, mode: ColumnMappingMode) -> list[StatisticsColumn]:
    """The fields with a default for files that lack them, as named in statistics."""
    columns = []
    for path, field in fields_with_existing_default(schema):
        names = tuple(physical_name(step, mode) for step in schema.fields_along(path))
        is_own = not is_name_in_collections(names)
        columns.append(StatisticsColumn(names, field.data_type, has_null_count=is_own))
    return columns


def map_footers(
    store: ObjectStore, paths: Sequence[str], look: Callable[[pa.Schema], bool]
) -> list[bool]:
    """The result of a function over the `pyarrow.Schema` of each file, by its footer.

    `paths`: paths of the files, as in the log.

    Raises:
        DataFileMissing, InvalidTable, StorageFailure: of a file.
    """

    def schema_of(path: str) -> pa.Schema:
        file = decode_path(path)
        with naming_data_file(store, file):
            return read_data_footer(store.open_input(file)).schema_arrow

    with ThreadPoolExecutor(_FOOTER_READERS, "delta-footer") as readers:
        return list(map(look, readers.map(schema_of, paths)))
