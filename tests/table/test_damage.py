"""Damaged files: the same rows, or an error that names the file; and no write makes it worse."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from dagster_delta.errors import CorruptLog, DeltaError, InvalidTable
from dagster_delta.protocol.log.paths import (
    LAST_CHECKPOINT_PATH,
    checkpoint_path,
    checksum_path,
    commit_path,
)
from dagster_delta.protocol.log.version_checksum import (
    encode_version_checksum,
    parse_version_checksum,
)
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.read.scan import Scan
from tests.table.damage import HOWS, READS, all_files, build_tables, rows_of, try_damage
from tests.table_rows import ids_of


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return build_tables(tmp_path_factory.mktemp("sound"))


def table_of_commits(root: Path, count: int = 5) -> DeltaTable:
    table = DeltaTable(str(root), must_exist=False)
    for number in range(count):
        table.append(pa.table({"id": [number]}))
    return table


def cut(file: Path) -> None:
    data = file.read_bytes()
    file.unlink()
    file.write_bytes(data[: len(data) // 2])


@pytest.mark.examples(2)
@pytest.mark.parametrize("operation", [*READS, "append", "delete", "checkpoint", "clean_log"])
@pytest.mark.parametrize("table", ["whole", "cleaned", "v2"])
def test_damage_in_the_log_gives_the_same_rows_or_a_named_error(
    tables: dict[str, Path], table: str, operation: str, tmp_path: Path
) -> None:
    source = tables[table]
    files = [
        each
        for each in all_files(source)
        if each.endswith((".json", ".crc")) or each == LAST_CHECKPOINT_PATH
    ]
    files = [each for each in files if each.startswith("_delta_log")]
    random_ = random.Random(f"{table} {operation}")
    for how in ("flip", "digit", "line", "cut"):
        file = random_.choice(files)
        for outcome in try_damage(source, file, how, operation, random_, tmp_path):
            assert not outcome.is_bad, outcome


@pytest.mark.parametrize("how", ["cut", "missing"])
@pytest.mark.parametrize("operation", ["read", "delete", "optimize", "vacuum"])
def test_a_data_file_that_is_cut_or_lost_is_named(
    tables: dict[str, Path], operation: str, how: str, tmp_path: Path
) -> None:
    source = tables["whole"]
    random_ = random.Random(f"{how} {operation}")
    file = random_.choice([each for each in all_files(source) if each.startswith("day=")])
    outcomes = list(try_damage(source, file, how, operation, random_, tmp_path))
    assert not any(each.is_bad for each in outcomes), outcomes
    assert set(HOWS) >= {how}


def page_of(file: Path, column: int) -> int:
    """Where the last page of a column ends in a file, but for a few bytes."""
    chunk = pq.read_metadata(file).row_group(0).column(column)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    return int(start) + chunk.total_compressed_size - 3


def flip(file: Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 0x10
    file.unlink()
    file.write_bytes(data)


READERS: dict[str, Callable[[Scan], int]] = {
    "arrow": lambda scan: int(scan.to_arrow().num_rows),
    "polars": lambda scan: scan.to_polars().height,
    "lazy polars": lambda scan: scan.to_polars_lazy().select("id").collect().height,
    "duckdb": lambda scan: len(scan.to_duckdb().fetchall()),
}
# 200 rows, 6 rows and -200 rows as the numbers of a footer.
NUM_ROWS, FEWER, NEGATIVE = b"\x90\x03", b"\x8c\x00", b"\x8f\x03"


@pytest.mark.parametrize("reader", READERS)
def test_a_footer_that_counts_other_rows_is_named(tmp_path: Path, reader: str) -> None:
    table = DeltaTable(str(tmp_path), must_exist=False)
    table.append(pa.table({"id": range(200)}))
    (file,) = tmp_path.glob("*.parquet")
    sound = file.read_bytes()
    start = len(sound) - 8 - int.from_bytes(sound[-8:-4], "little")
    places = [at for at in range(start, len(sound)) if sound.startswith(NUM_ROWS, at)]
    refused: list[str] = []
    for place, number in product(places, (FEWER, NEGATIVE)):
        file.unlink()
        file.write_bytes(sound[:place] + number + sound[place + 2 :])
        try:
            assert READERS[reader](DeltaTable(table.uri).snapshot().scan()) == 200
        except (InvalidTable, duckdb.Error, pl.exceptions.ComputeError) as error:
            refused.append(str(error))
    # The number of the file and that of its row group, at least.
    assert len(refused) >= 4
    assert all(file.name in error for error in refused)


@pytest.mark.parametrize("where", [None, "id < 5"])
@pytest.mark.parametrize("has_checkpoint", [False, True], ids=["commit", "checkpoint"])
def test_a_data_file_with_other_rows_than_the_log_counts_is_named(
    tmp_path: Path, has_checkpoint: bool, where: str | None
) -> None:
    table = DeltaTable(str(tmp_path), must_exist=False)
    table.append(pa.table({"id": range(200)}))
    if has_checkpoint:
        table.checkpoint()
    (file,) = tmp_path.glob("*.parquet")
    pq.write_table(pa.table({"id": range(6)}), file)
    table = DeltaTable(table.uri)
    for read in (
        lambda: table.snapshot().scan(where=where).to_arrow(),
        lambda: table.snapshot().scan(where=where).to_polars(),
        lambda: table.delete("id = 3"),
        lambda: table.update({"id": "0"}, where="id = 3"),
        lambda: table.optimize(zorder_by=["id"]),
    ):
        with pytest.raises(InvalidTable, match="the log counts 200") as found:
            read()
        assert found.value.file == file.name
    assert table.version() == 0


def test_pages_carry_checksums_and_a_flipped_bit_in_a_page_is_found(tmp_path: Path) -> None:
    table = DeltaTable(str(tmp_path), must_exist=False)
    table.append(pa.table({"id": range(1000), "x": [float(each) for each in range(1000)]}))
    (file,) = tmp_path.glob("*.parquet")
    flip(file, page_of(file, 1))
    scan = DeltaTable(str(tmp_path)).snapshot().scan(verify_checksums=True)
    with pytest.raises(InvalidTable, match="CRC checksum") as caught:
        scan.to_arrow()
    assert caught.value.file == file.name
    # What is written anew would get a good checksum of its own.
    for write in (table.optimize, lambda: table.update({"x": "x + 1"}, where="id = 3")):
        table.append(pa.table({"id": [1], "x": [0.5]}))
        with pytest.raises(InvalidTable, match="CRC checksum"):
            write()


def test_spliced_files_keep_checksums_that_hold(tmp_path: Path) -> None:
    table = DeltaTable(str(tmp_path), must_exist=False)
    count = 200_000
    table.append(pa.table({"id": range(count), "a": range(count), "b": ["x"] * count}))
    table.update({"a": "a + 1"}, where="id = 7")
    (path,) = table.snapshot().files()["path"].to_pylist()
    found = pq.read_table(tmp_path / path, page_checksum_verification=True)
    assert found["a"][7].as_py() == 8
    for column in range(3):
        damaged = tmp_path / f"damaged{column}"
        damaged.write_bytes((tmp_path / path).read_bytes())
        flip(damaged, page_of(damaged, column))
        with pytest.raises(OSError, match="CRC checksum"):
            pq.read_table(damaged, page_checksum_verification=True)


def test_a_damaged_checkpoint_is_passed_over_where_all_commits_are_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = table_of_commits(tmp_path)
    table.checkpoint()
    table.append(pa.table({"id": [9]}))
    cut(tmp_path / checkpoint_path(4))
    reopened = DeltaTable(str(tmp_path))
    assert reopened.snapshot().scan().to_arrow().num_rows == 6
    assert checkpoint_path(4) in caplog.text
    assert reopened.health().damaged_log_files == (checkpoint_path(4),)
    reopened.delete("id = 9")
    reopened.checkpoint()
    assert DeltaTable(str(tmp_path)).health().damaged_log_files == ()
    assert ids_of(tmp_path) == [0, 1, 2, 3, 4]


def test_an_older_checkpoint_serves_where_the_newer_one_is_damaged(tmp_path: Path) -> None:
    table = table_of_commits(tmp_path)
    table.checkpoint()
    table.append(pa.table({"id": [9]}))
    table.checkpoint()
    for version in range(4):
        (tmp_path / commit_path(version)).unlink()
    cut(tmp_path / checkpoint_path(5))
    assert ids_of(tmp_path) == [0, 1, 2, 3, 4, 9]
    cut(tmp_path / checkpoint_path(4))
    with pytest.raises(CorruptLog) as caught:
        ids_of(tmp_path)
    assert caught.value.file in {checkpoint_path(5), checkpoint_path(4)}


def test_rows_stay_in_order_when_the_damage_shows_late(tmp_path: Path) -> None:
    table = table_of_commits(tmp_path)
    table.checkpoint()
    file = tmp_path / checkpoint_path(4)
    footer = pq.read_metadata(file)
    names = [footer.schema.column(each).path for each in range(footer.num_columns)]
    snapshot = DeltaTable(str(tmp_path)).snapshot()
    paths = snapshot.live_files(["path"])["path"].to_pylist()
    flip(file, page_of(file, names.index("add.size")))
    sizes = snapshot.live_files(["size_bytes"])["size_bytes"].to_pylist()
    assert snapshot.damaged_log_files == (checkpoint_path(4),)
    assert snapshot.live_files(["path"])["path"].to_pylist() == paths
    assert sizes == [(tmp_path / each).stat().st_size for each in paths]


def test_a_clean_up_leaves_the_commits_that_a_damaged_checkpoint_stands_for(
    tmp_path: Path,
) -> None:
    table = table_of_commits(tmp_path)
    table.checkpoint()
    table.append(pa.table({"id": [9]}))
    file = tmp_path / checkpoint_path(4)
    # In a column that no reader of this table needs.
    names = [each.path for each in map(pq.read_metadata(file).schema.column, range(30))]
    flip(file, page_of(file, names.index("add.modificationTime")))
    with pytest.raises(DeltaError):
        clean_up(DeltaTable(str(tmp_path)))
    assert all((tmp_path / commit_path(version)).exists() for version in range(6))
    assert ids_of(tmp_path) == [0, 1, 2, 3, 4, 9]


def test_a_clean_up_leaves_the_commits_where_others_count_more_than_the_checkpoint(
    tmp_path: Path,
) -> None:
    table = table_of_commits(tmp_path)
    table.checkpoint()
    table.append(pa.table({"id": [9]}))
    file = tmp_path / checksum_path(4)
    counted = parse_version_checksum(file.read_bytes())
    assert counted is not None
    file.unlink()
    file.write_bytes(encode_version_checksum(replace(counted, num_files=6, is_own=False)))
    with pytest.raises(CorruptLog, match="delete it"):
        clean_up(DeltaTable(str(tmp_path)))
    assert all((tmp_path / commit_path(version)).exists() for version in range(6))
    file.unlink()
    clean_up(DeltaTable(str(tmp_path)))
    assert not (tmp_path / commit_path(0)).exists()
    assert ids_of(tmp_path) == [0, 1, 2, 3, 4, 9]


def clean_up(table: DeltaTable) -> None:
    from dagster_delta.table.log_upkeep.cleanup import clean_log

    store = table.store
    newest = store.head(commit_path(4))
    assert newest is not None
    later = newest.modified_ms + 40 * 86_400_000
    clean_log(
        store, table.snapshot(), clock=lambda: later, dry_run=False, may_write_checkpoint=False
    )


def test_a_commit_that_lost_an_action_contradicts_the_checksum(tmp_path: Path) -> None:
    table_of_commits(tmp_path)
    file = tmp_path / commit_path(3)
    # As another writer would have left it, without a checksum of its own.
    lines = file.read_bytes().replace(b"contentCrc32", b"before")
    file.unlink()
    file.write_bytes(lines.replace(b'{"add":', b'{"aed":'))
    with pytest.raises(CorruptLog, match="contradict") as caught:
        ids_of(tmp_path)
    assert caught.value.file == checksum_path(4)
    table = DeltaTable(str(tmp_path))
    for write in (table.checkpoint, lambda: table.vacuum(0, enforce_retention=False)):
        with pytest.raises(CorruptLog):
            write()
    # Whoever finds that it is the checksum that is wrong takes it away.
    (tmp_path / checksum_path(4)).unlink()
    assert ids_of(tmp_path) == [0, 1, 2, 4]


def test_the_checksum_of_a_commit_that_was_lost_is_replaced(tmp_path: Path) -> None:
    table_of_commits(tmp_path, 3)
    (tmp_path / commit_path(2)).unlink()
    assert ids_of(tmp_path) == [0, 1]
    DeltaTable(str(tmp_path)).append(pa.table({"id": [7, 8]}))
    assert ids_of(tmp_path) == [0, 1, 7, 8]


def test_undamaged_tables_are_read_as_they_were_written(tables: dict[str, Path]) -> None:
    assert len(rows_of(tables["whole"])) == len(rows_of(tables["cleaned"])) == 62


def test_a_broken_page_header_of_a_checkpoint_is_named(tmp_path: Path) -> None:
    table = DeltaTable(str(tmp_path), must_exist=False)
    table.append(pa.table({"id": [1, 2]}))
    table.append(pa.table({"id": [3]}))
    table.checkpoint()
    for version in range(2):
        (tmp_path / commit_path(version)).unlink()
    file = tmp_path / checkpoint_path(1)
    data = file.read_bytes()
    footer = pq.read_metadata(file)
    chunks = [footer.row_group(0).column(index) for index in range(footer.num_columns)]
    outcomes = set()
    for chunk in chunks:
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        broken = bytearray(data)
        broken[start] ^= 0xFF
        file.write_bytes(broken)
        try:
            rows = DeltaTable(str(tmp_path)).snapshot().scan().to_arrow()
        except CorruptLog as error:
            outcomes.add(str(error.file).rpartition("/")[2])
        else:
            # A column that nobody needs is not looked at.
            assert sorted(rows["id"].to_pylist()) == [1, 2, 3]
            outcomes.add("same")
    assert outcomes == {file.name, "same"}
