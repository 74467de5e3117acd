"""Feeds of versions that recorded none: the same net changes as those of a table with the feed on."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.errors import ChangeDataNotRecorded, SchemaMismatch
from tests.conformance.engines import Engine

SHAPES: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "plain": ({}, ()),
    "vectors": ({"delta.enableDeletionVectors": "true"}, ()),
    "partitioned": ({}, ("p",)),
    "mapped": ({"delta.columnMapping.mode": "name"}, ("p",)),
    "mapped_vectors": (
        {"delta.columnMapping.mode": "id", "delta.enableDeletionVectors": "true"},
        ("p",),
    ),
}

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("v", pa.string()),
        ("x", pa.float64()),
        ("p", pa.int32()),
        ("s", pa.struct([("at", pa.timestamp("us", "UTC")), ("n", pa.int32())])),
        ("xs", pa.list_(pa.int32())),
        ("m", pa.map_(pa.string(), pa.int64())),
    ]
)


def some_rows(random: random.Random, count: int) -> pa.Table:
    rows = []
    for _ in range(count):
        number = random.randrange(8)
        rows.append(
            {
                "id": number,
                "v": random.choice(["a", "b", "", None]),
                "x": random.choice([0.0, 1.5, float("nan"), None]),
                "p": random.choice([0, 1, None]),
                "s": random.choice([None, {"at": number * 1_000_001, "n": None}]),
                "xs": random.choice([None, [], [number, None]]),
                "m": random.choice([None, [("a", number), ("b", None)]]),
            }
        )
    return pa.Table.from_pylist(rows, SCHEMA)


def key_of(row: dict[str, Any]) -> str:
    return repr([row[name] for name in SCHEMA.names])


def random_change(random: random.Random) -> Callable[[DeltaTable], object]:
    """One statement, which changes each table that it is given in the same way."""
    rows, number = some_rows(random, random.randrange(1, 6)), random.randrange(8)
    one_each = rows.take(
        sorted({value: n for n, value in enumerate(rows["id"].to_pylist())}.values())
    )
    statements: list[Callable[[DeltaTable], object]] = [
        lambda table: table.append(rows),
        lambda table: table.append(rows),
        lambda table: table.delete(f"id = {number}"),
        lambda table: table.update({"v": "'z'"}, f"id < {number}"),
        lambda table: table.update({"v": "v"}, f"id = {number}"),
        lambda table: (
            table.merge(one_each, "t.id = s.id")
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute()
        ),
        lambda table: table.optimize(),
        lambda table: table.overwrite(rows),
        lambda table: table.overwrite(rows.slice(0, 1), replace_using=["id"]),
        lambda table: table.delete("p = 1"),
        lambda table: table.restore(max(0, table.version() - 2)),
    ]
    return random.choice(statements)


def net_changes(rows: list[dict[str, Any]]) -> dict[int, Counter[str]]:
    """By version, how many rows more or fewer of each value there are."""
    found: dict[int, Counter[str]] = {}
    for row in rows:
        sign = 1 if row["_change_type"] in ("insert", "update_postimage") else -1
        found.setdefault(row["_commit_version"], Counter())[key_of(row)] += sign
    kept = {
        version: Counter({key: count for key, count in counts.items() if count})
        for version, counts in found.items()
    }
    return {version: counts for version, counts in kept.items() if counts}


def check_history(root: Path, shape: str, seed: int, length: int) -> Iterator[DeltaTable]:
    """Two tables with the same history, the first with the feed on."""
    properties, partition_by = SHAPES[shape]
    chosen = random.Random(seed)
    first = some_rows(chosen, 6)
    twins = []
    for feed in ("true", "false"):
        table = DeltaTable(str(root / f"{shape}-{seed}-{feed}"), must_exist=False)
        given = {**properties, "delta.enableChangeDataFeed": feed}
        table.append(first, properties=given, partition_by=partition_by)
        twins.append(table)
    for _ in range(length):
        change = random_change(chosen)
        for table in twins:
            change(table)
    yield from twins


@pytest.mark.parametrize("shape", SHAPES)
def test_net_changes_of_random_histories_equal_those_of_the_feed(
    engine: Engine, tmp_path: Path, shape: str
) -> None:
    histories = range(8) if engine.session is None else range(1)
    for seed in histories:
        with_feed, without = check_history(tmp_path, shape, seed, 10)
        expected = net_changes(engine.read(with_feed.changes(0)).to_pylist())
        feed = without.changes(0)
        rows = engine.read(feed).to_pylist()
        assert net_changes(rows) == expected, (shape, seed)
        if engine.session is None:
            versions = [row["_commit_version"] for row in rows]
            assert versions == sorted(versions)
        for version in range(with_feed.version() + 1) if engine.session is None else ():
            one = engine.read(without.changes(version, version)).to_pylist()
            assert net_changes(one) == {v: n for v, n in expected.items() if v == version}


@pytest.fixture
def rewritten(engine: Engine, table: DeltaTable) -> DeltaTable:
    """Version 1 updates one of three rows, version 2 rewrites all of them unchanged."""
    rows = pa.table({"id": [1, 2, 3], "v": ["a", "b", "b"]})
    table.append(engine.rows(rows))
    table.update({"v": "'z'"}, "id = 1", engine=engine.name)
    table.update({"v": "v"}, engine=engine.name)
    return table


def test_rows_that_only_moved_are_no_changes(engine: Engine, rewritten: DeltaTable) -> None:
    assert engine.changes(rewritten, 1, "id", "v", "_commit_version") == [
        ("delete", 1, "a", 1),
        ("insert", 1, "z", 1),
    ]
    assert rewritten.changes(1).compared_bytes > 0


def test_filters_and_columns_are_those_of_the_changes(
    engine: Engine, rewritten: DeltaTable
) -> None:
    def found(where: str) -> list[Any]:
        feed = rewritten.changes(1, where=where, columns=["v"])
        return sorted(row["v"] for row in engine.read(feed).to_pylist())

    assert found("_change_type = 'insert'") == ["z"]
    assert found("_change_type = 'delete' AND id < 2") == ["a"]
    assert found("id = 1") == ["a", "z"]
    assert found("id = 2") == []
    assert found("_commit_version = 2") == []


def test_appended_and_deleted_files_cost_nothing_more(engine: Engine, table: DeltaTable) -> None:
    rows = pa.table({"id": [1, 2, 3], "p": [1, 2, 2]})
    properties = {"delta.enableDeletionVectors": "true"}
    table.append(engine.rows(rows), partition_by=["p"], properties=properties)
    table.delete("p = 1", engine=engine.name)
    table.append(engine.rows(rows))
    table.update({"id": "id + 10"}, "p = 2 AND id = 2", engine=engine.name)
    table.optimize()
    feed = table.changes(1, max_bytes=0)
    assert feed.compared_bytes == 0
    assert engine.changes(table, 1, "id", "_commit_version")[0] == ("delete", 1, 1)


def test_rows_stay_in_a_partition_that_writers_spell_differently(
    engine: Engine, tmp_path: Path
) -> None:
    rows = pa.table({"id": [1, 2], "at": pa.array([0, 0], pa.timestamp("us", "UTC"))})
    table = DeltaTable(str(tmp_path), must_exist=False)
    table.append(rows, partition_by=["at"])
    commit = tmp_path / "_delta_log" / "00000000000000000000.json"
    text = re.sub(r',"contentCrc32":\d+', "", commit.read_text())
    ours, theirs = ("1970-01-01T00:00:00.000000Z", "1970-01-01 00:00:00")
    assert text.count(f'"at":"{ours}"') == 1
    commit.write_text(text.replace(f'"at":"{ours}"', f'"at":"{theirs}"'))
    (tmp_path / "_delta_log" / "00000000000000000000.crc").unlink(missing_ok=True)
    table = DeltaTable(str(tmp_path))
    table.update({"id": "id + 10"}, "id = 1", engine=engine.name)
    assert engine.changes(table, 1, "id") == [("delete", 1), ("insert", 11)]


def test_more_bytes_than_allowed_are_refused_with_the_figure(
    engine: Engine, rewritten: DeltaTable
) -> None:
    feed = rewritten.changes(0, max_bytes=10)
    with pytest.raises(ChangeDataNotRecorded, match=r"versions 1 to 2.*max_bytes is 10") as caught:
        engine.read(feed)
    assert f"{feed.compared_bytes:,} bytes" in str(caught.value)
    assert caught.value.version == 1
    assert engine.read(rewritten.changes(0, max_bytes=None)).num_rows == 5


def test_versions_with_and_without_the_feed_are_read_together(
    engine: Engine, table: DeltaTable
) -> None:
    table.append(engine.rows(pa.table({"id": [1, 2]})))
    table.update({"id": "id + 10"}, "id = 1", engine=engine.name)
    table.set_properties({"delta.enableChangeDataFeed": "true"})
    table.update({"id": "id + 10"}, "id = 2", engine=engine.name)
    assert engine.changes(table, 1, "id", "_commit_version") == [
        ("delete", 1, 1),
        ("insert", 11, 1),
        ("update_postimage", 12, 3),
        ("update_preimage", 2, 3),
    ]


def test_an_error_across_a_dropped_column_names_the_ranges_that_can_be_read(
    engine: Engine, table: DeltaTable
) -> None:
    properties = {"delta.columnMapping.mode": "name"}
    table.append(engine.rows(pa.table({"id": [1], "v": ["a"]})), properties=properties)
    table.append(engine.rows(pa.table({"id": [2], "v": ["b"]})))
    table.drop_column("v")
    table.append(engine.rows(pa.table({"id": [3]})))
    with pytest.raises(SchemaMismatch, match="versions 0 to 1, 2 to 3") as caught:
        engine.read(table.changes(0))
    assert "each range by itself" in str(caught.value)
    for first, last in ((0, 1), (2, 3)):
        assert engine.read(table.changes(first, last)).num_rows
