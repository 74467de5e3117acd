"""Which columns rows may be sorted by along a curve, and which files of a clustered table are
rewritten together along one.

Files that were clustered together form a cube, identified by their tags. New files and small cubes
become larger cubes; a cube that is large enough is left unchanged, so that the cost of an OPTIMIZE
depends on the new files.

Spec: Per-file Statistics; Clustered Table; Add File and Remove File (tags, clusteringProvider).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.errors import InvalidArgument
from dagster_delta.evolution.column_paths import ColumnPath, dotted
from dagster_delta.protocol.actions import AddFile
from dagster_delta.protocol.checkpoint.structs import statistics_columns
from dagster_delta.protocol.features.column_mapping import physical_name
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import ArrayType, MapType, PrimitiveType, StructField, StructType
from dagster_delta.protocol.table_properties import parse_column_paths
from dagster_delta.table.maintenance.compaction_plan import FileGroup
from dagster_delta.table.write.file_actions import split_by_size

PROVIDER = "liquid"
"""The name of this way of clustering in the reference implementation."""

_CUBE_ID, _CUBE_COLUMNS, _CUBE_CURVE = "ZCUBE_ID", "ZCUBE_ZORDER_BY", "ZCUBE_ZORDER_CURVE"

_UNORDERED = frozenset({"variant", "void"})


def zorder_columns(
    configuration: TableConfiguration, columns: Sequence[str], *, option: str = "zorder_by"
) -> tuple[tuple[str, ...], ...]:
    """The logical paths of the columns, as the schema spells them.

    `option` is the option that names them, for errors. Dots separate struct fields, and backticks
    quote a name that contains dots.
    """
    if columns and configuration.supports("clustering"):
        raise InvalidArgument(
            "the table has clustering columns, which say how its rows are laid out; leave "
            f"{option} out"
        )
    indexed = {each.path for each in statistics_columns(configuration)}
    found: list[tuple[str, ...]] = []
    for name in columns:
        fields = _resolve(configuration.schema, name)
        path = tuple(each.name for each in fields)
        _check(configuration, name, fields, option)
        mode = configuration.column_mapping_mode
        if tuple(physical_name(each, mode) for each in fields) not in indexed:
            raise InvalidArgument(
                f"files have no statistics on {name}, so sorting by it would let no reader skip a "
                "file; extend delta.dataSkippingStatsColumns or delta.dataSkippingNumIndexedCols, "
                "and rewrite the table, or choose another column",
                column=name,
            )
        if path in found:
            raise InvalidArgument(f"{option} names {name} twice", column=name)
        found.append(path)
    return tuple(found)


def _resolve(schema: StructType, name: str) -> tuple[StructField, ...]:
    paths = parse_column_paths(name)
    if len(paths) != 1:
        raise InvalidArgument(f"{name!r} is not the name of one column", column=name)
    fields: list[StructField] = []
    inside: object = schema
    for step in paths[0]:
        if not isinstance(inside, StructType):
            raise InvalidArgument(f"{name} leads into a column that is no struct", column=name)
        fields.append(inside.field(step))
        inside = fields[-1].data_type
    return tuple(fields)


def _check(
    configuration: TableConfiguration, name: str, fields: tuple[StructField, ...], option: str
) -> None:
    if fields[0].name in configuration.partition_columns:
        raise InvalidArgument(
            f"{name} is a partition column: its values are apart already; leave it out of {option}",
            column=name,
        )
    kind = fields[-1].data_type
    unordered = isinstance(kind, PrimitiveType) and kind.name in _UNORDERED
    if unordered or isinstance(kind, (StructType, ArrayType, MapType)):
        raise InvalidArgument(f"values of type {kind} have no order to sort {name} by", column=name)


def plan_cubes(
    files: pa.Table,
    columns: Sequence[ColumnPath],
    purged: pa.BooleanArray,
    *,
    max_bytes: int,
    full: bool,
) -> list[FileGroup]:
    """The cubes to write, each with the files that go into it.

    `max_bytes` bounds the files of one cube, unless it is one file; `purged` files are rewritten
    anyway; `full` clusters files that were clustered by other columns again too.
    """
    cubes = _cube_of(files["tags"], _CUBE_ID)
    by = _cube_of(files["tags"], _CUBE_COLUMNS)
    wanted = _column_names(columns)
    sizes = files["size_bytes"].to_pylist()
    total: dict[str | None, int] = {}
    for cube, size in zip(cubes, sizes, strict=True):
        total[cube] = total.get(cube, 0) + size
    providers = files["clustering_provider"].to_pylist()
    chosen, is_worth_it = [], False
    for position, is_purged in enumerate(purged.to_pylist()):
        cube = cubes[position]
        is_foreign = providers[position] not in (None, PROVIDER) or by[position] not in (
            None,
            wanted,
        )
        if is_foreign and not full:
            continue
        is_large = cube is not None and not is_foreign and total[cube] * 3 >= max_bytes * 2
        if is_large and not is_purged:
            continue
        chosen.append(position)
        is_worth_it |= is_purged or is_foreign or cube is None
    if not is_worth_it and len({cubes[each] for each in chosen}) < 2:
        # A single small cube cannot be improved.
        return []
    chosen.sort(key=lambda each: cubes[each] or "")
    return [
        FileGroup(tuple(batch), sum(sizes[each] for each in batch))
        for batch in split_by_size(chosen, sizes.__getitem__, max_bytes)
    ]


def clustered(files: Iterable[AddFile], columns: Sequence[ColumnPath]) -> Iterator[AddFile]:
    """The files, tagged as those of a new cube."""
    tags = {
        _CUBE_ID: str(uuid.uuid4()),
        _CUBE_COLUMNS: _column_names(columns),
        _CUBE_CURVE: "hilbert",
    }
    for each in files:
        yield msgspec.structs.replace(
            each, tags={**(each.tags or {}), **tags}, clustering_provider=PROVIDER
        )


def _column_names(columns: Sequence[ColumnPath]) -> str:
    return msgspec.json.encode([dotted(each) for each in columns]).decode()


def _cube_of(tags: pa.ChunkedArray, key: str) -> list[str | None]:
    found: list[str | None] = pc.map_lookup(tags, key, "first").to_pylist()
    return found
