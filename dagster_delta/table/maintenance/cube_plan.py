"""Which files of a clustered table are rewritten, and which of them along one curve.

Files that were clustered together form a cube, identified by their tags. New files and small cubes
become larger cubes; a cube that is large enough is left unchanged, so that the cost of an OPTIMIZE
depends on the new files.

Spec: Clustered Table; Add File and Remove File (tags, clusteringProvider).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.evolution.column_paths import ColumnPath, dotted
from dagster_delta.protocol.actions import AddFile
from dagster_delta.table.maintenance.compaction_plan import FileGroup
from dagster_delta.table.write.file_actions import split_by_size

PROVIDER = "liquid"
"""The name of this way of clustering in the reference implementation."""

_CUBE_ID, _CUBE_COLUMNS, _CUBE_CURVE = "ZCUBE_ID", "ZCUBE_ZORDER_BY", "ZCUBE_ZORDER_CURVE"


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
