"""Two writers of one table: their operations, what each leaves, and which of them meet.

A second writer runs a whole operation of its own just before the first one commits. The model says
which rows are there afterwards, and whether the first operation has to be planned a second time.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_delta import DeltaTable
from dagster_delta.protocol.actions import AddFile, RemoveFile
from dagster_delta.protocol.features.deletion_vectors import deletion_vector_path
from dagster_delta.protocol.log.commit_file import decode_commit
from dagster_delta.storage import open_store
from dagster_delta.testing.faulty_store import FaultyStore
from tests.conformance.engines import Engine
from tests.sample_tables import data

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MY_ROW = 4
DISTANCES = {"same row": 4, "same file": 6, "same partition": 14, "apart": 24}
"""The row that the second writer names; the first one names `MY_ROW`."""
TABLES = list(itertools.product(("WriteSerializable", "Serializable"), (True, False)))
"""Isolation level, and whether the table has deletion vectors."""

_ROWS_PER_FILE, _FILES = 10, 4
_ROWS_PER_PARTITION = 20
_GARBAGE = "p=0/garbage.parquet"

Rows = list[tuple[int, str]]
"""Values of `id` and `v`, sorted."""


@dataclass(frozen=True)
class Place:
    """A table, and the engine that one of its writers uses."""

    table: DeltaTable
    engine: Engine

    def row(self, row: int, text: str) -> Any:
        return self.engine.rows(data((row, f"{text}{row}", _partition(row))))


def _partition(row: int) -> int:
    return row // _ROWS_PER_PARTITION


def append(place: Place, row: int) -> Any:
    return place.table.append(place.row(row, "a"))


def overwrite(place: Place, row: int) -> Any:
    return place.table.overwrite(place.row(row, "w"))


def overwrite_where(place: Place, row: int) -> Any:
    return place.table.overwrite(place.row(row, "o"), where=f"id = {row}")


def delete(place: Place, row: int) -> Any:
    return place.table.delete(f"id = {row}", engine=place.engine.name)


def update(place: Place, row: int) -> Any:
    changed = {"v": "concat(v, '+')"}
    return place.table.update(changed, f"id = {row}", engine=place.engine.name)


def merge(place: Place, row: int) -> Any:
    merged = place.table.merge(place.row(row, "m"), "t.id = s.id", engine=place.engine.name)
    return merged.when_matched_update_all().when_not_matched_insert_all().execute()


def optimize(place: Place, row: int) -> Any:
    return place.table.optimize(f"p = {_partition(row)}", engine=place.engine.name)


def add_column(place: Place, row: int) -> Any:
    return place.table.alter(f"ADD COLUMN n{row} INT")


def vacuum(place: Place, row: int) -> Any:
    return place.table.vacuum(dry_run=False)


OPERATIONS: dict[str, Callable[[Place, int], Any]] = {
    each.__name__: each
    for each in (
        append,
        overwrite,
        overwrite_where,
        delete,
        update,
        merge,
        optimize,
        add_column,
        vacuum,
    )
}
PAIRS = list(itertools.product(OPERATIONS, OPERATIONS, DISTANCES))
"""The operation of the first writer, that of the second, and how far apart they are."""

_OF_ROWS = {"overwrite_where", "delete", "update", "merge"}

_SQL = {
    "append": "INSERT INTO {t} VALUES ({row}, 'a{row}', {p})",
    "overwrite": "INSERT OVERWRITE {t} VALUES ({row}, 'w{row}', {p})",
    "overwrite_where": "INSERT INTO {t} REPLACE WHERE id = {row} VALUES ({row}, 'o{row}', {p})",
    "delete": "DELETE FROM {t} WHERE id = {row}",
    "update": "UPDATE {t} SET v = concat(v, '+') WHERE id = {row}",
    "merge": "MERGE INTO {t} t USING (SELECT {row}L AS id, 'm{row}' AS v, {p} AS p) s "
    "ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
    "optimize": "OPTIMIZE {t} WHERE p = {p}",
    "add_column": "ALTER TABLE {t} ADD COLUMNS (n{row} INT)",
    "vacuum": "VACUUM {t}",
}


def run_sql(session: SparkSession, operation: str, uri: str, row: int) -> None:
    """The same operation by delta-spark."""
    session.sql(_SQL[operation].format(t=f"delta.`{uri}`", row=row, p=_partition(row)))


def rows_after(operation: str, row: int, rows: Rows) -> Rows:
    """What an operation leaves of the rows."""
    others = [each for each in rows if each[0] != row]
    match operation:
        case "append":
            return sorted([*rows, (row, f"a{row}")])
        case "overwrite":
            return [(row, f"w{row}")]
        case "overwrite_where":
            return sorted([*others, (row, f"o{row}")])
        case "delete":
            return others
        case "update":
            return sorted((id_, f"{v}+" if id_ == row else v) for id_, v in rows)
        case "merge":
            matched = len(rows) - len(others)
            return sorted(others + [(row, f"m{row}")] * max(1, matched))
    return rows


def comes_first(mine: str, theirs: str, isolation: str) -> bool:
    """Whether the order is that of the first writer, then the second, although the second one has
    committed before: an append that reads nothing may be ordered after anything.
    """
    return theirs == "append" and isolation == "WriteSerializable" and mine != "add_column"


def excludes(mine: str, theirs: str, distance: str) -> bool:
    """Whether no order exists in which both succeed."""
    return mine == theirs == "add_column" and distance == "same row"


def meet(mine: str, theirs: str, distance: str, isolation: str, *, has_vectors: bool) -> bool:
    """Whether the second commit changes what the first operation depends on, so that this has to be
    planned again.
    """
    if mine == "add_column":
        return theirs == "add_column"
    if mine not in _OF_ROWS | {"overwrite"} or theirs in {"add_column", "vacuum"}:
        return False
    if theirs == "append":
        may_match = mine == "overwrite" or distance == "same row"
        return isolation == "Serializable" and may_match
    if mine == "overwrite" or theirs == "overwrite":
        return True
    if theirs == "optimize":
        return distance != "apart"
    decided_by_rows = has_vectors and isolation == "WriteSerializable"
    return distance == "same row" or (distance == "same file" and not decided_by_rows)


def leaves_files(mine: str, theirs: str, distance: str, *, has_vectors: bool) -> bool:
    """Whether an OPTIMIZE leaves its files as they are, as the second commit took some of them."""
    if mine != "optimize" or theirs not in _OF_ROWS | {"overwrite", "optimize"}:
        return False
    moves_files = theirs == "optimize" or not has_vectors
    return theirs == "overwrite" or (moves_files and distance != "apart")


class Templates:
    """Tables that are made once and then copied: two partitions of two files each, and an old file
    for VACUUM to delete.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def of(self, isolation: str, *, has_vectors: bool) -> Path:
        """The table of an isolation level, with or without deletion vectors."""
        path = self._root / f"{isolation}-{has_vectors}"
        if not path.exists():
            _fill(path, isolation, has_vectors=has_vectors)
        return path


def _fill(path: Path, isolation: str, *, has_vectors: bool) -> None:
    table = DeltaTable(str(path), must_exist=False)
    properties = {
        "delta.isolationLevel": isolation,
        "delta.enableDeletionVectors": str(has_vectors).lower(),
    }
    for first in range(0, _FILES * _ROWS_PER_FILE, _ROWS_PER_FILE):
        ids = range(first, first + _ROWS_PER_FILE)
        rows = data(*((each, f"v{each}", _partition(each)) for each in ids))
        table.append(rows, partition_by=["p"], properties=properties)
    garbage = path / _GARBAGE
    garbage.write_bytes(b"x")
    os.utime(garbage, (0, 0))


def check_pair(
    templates: Templates,
    copy: Path,
    pair: tuple[str, str, str],
    isolation: str,
    engine: Engine,
    act: Callable[[str, int], None],
    *,
    has_vectors: bool,
) -> None:
    """Both writers succeed, in an order that the isolation level allows.

    Args:
        templates: the tables to copy.
        copy: where the table of this case goes.
        pair: one of `PAIRS`.
        isolation: isolation level of the table.
        engine: of the first writer.
        act: what the second writer does to the table at a location, and with which row.
        has_vectors: whether the table has deletion vectors.
    """
    mine, theirs, distance = pair
    shutil.copytree(templates.of(isolation, has_vectors=has_vectors), copy)
    uri, their_row = str(copy), DISTANCES[distance]
    waiting = [act]

    def rival(operation: str, path: str) -> None:
        if operation == "put_if_absent" and path.endswith(".json") and waiting:
            waiting.pop()(uri, their_row)

    start = _rows(uri)
    place = Place(DeltaTable(uri, store=FaultyStore(open_store(uri), before_call=rival)), engine)
    result = OPERATIONS[mine](place, MY_ROW)
    assert not waiting
    steps = [(theirs, their_row), (mine, MY_ROW)]
    if comes_first(mine, theirs, isolation):
        steps.reverse()
    expected = start
    for operation, row in steps:
        expected = rows_after(operation, row, expected)
    assert _rows(uri) == expected
    again = meet(mine, theirs, distance, isolation, has_vectors=has_vectors)
    assert getattr(result, "attempts", 1) == (2 if again else 1)
    if mine == "optimize":
        is_left = leaves_files(mine, theirs, distance, has_vectors=has_vectors)
        assert bool(result.num_left_files) is is_left
    added = {f"n{row}" for operation, row in steps if operation == "add_column"}
    names = set(DeltaTable(uri).schema().names)
    assert names == {"id", "v", "p"} | added
    assert _files(copy) - {_GARBAGE} == _files_of_log(copy)


def _rows(uri: str) -> Rows:
    found = DeltaTable(uri).snapshot().scan(["id", "v"]).to_arrow().to_pylist()
    return sorted((row["id"], row["v"]) for row in found)


def _files(root: Path) -> set[str]:
    paths = {each.relative_to(root) for each in root.rglob("*") if each.is_file()}
    # Hadoop puts a hidden checksum beside every file.
    return {str(each) for each in paths if each.parts[0] != "_delta_log" and each.name[0] != "."}


def _files_of_log(root: Path) -> set[str]:
    """Files that some version of the log refers to."""
    found: set[str] = set()
    for path in (root / "_delta_log").glob("*.json"):
        actions = decode_commit(path.read_bytes(), version=0)
        logical: list[AddFile | RemoveFile] = [*actions.adds, *actions.removes]
        for each in logical:
            found.add(each.path)
            vector = each.deletion_vector
            if vector is not None and vector.storage_type != "i":
                found.add(deletion_vector_path(vector))
    return found
