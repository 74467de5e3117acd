"""What VACUUM and log clean-up delete stays inside the table and outside of every retained version,
whatever the log says and wherever the process is killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_delta.errors import StorageFailure
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.storage.local_store import LocalStore
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.log_upkeep.cleanup import clean_log
from dagster_delta.table.operations.vacuum import VacuumOptions, vacuum_table
from dagster_delta.table.read.snapshot import Snapshot
from tests.sample_tables import numbered_with_nulls
from tests.table_rows import ids_of

HOUR = 60 * 60
DAY_MS = 24 * HOUR * 1000


def aged(paths: object, hours: float) -> None:
    then = time.time() - hours * HOUR
    for path in paths:  # type: ignore[attr-defined]
        os.utime(path, (then, then))


def in_days(days: float) -> object:
    return lambda: time.time_ns() // 1_000_000 + int(days * DAY_MS)


def vacuumed(root: Path) -> set[str]:
    store = LocalStore(root)
    options = VacuumOptions(dry_run=False)
    result = vacuum_table(store, Snapshot.load(store), options, clock=in_days(30))  # type: ignore[arg-type]
    return set(result.files["path"].to_pylist())


def add_action(path: str, size: int) -> str:
    add = {
        "path": path,
        "partitionValues": {},
        "size": size,
        "modificationTime": 0,
        "dataChange": True,
    }
    return json.dumps({"add": add}) + "\n"


def remove_action(path: str) -> str:
    remove = {"path": path, "deletionTimestamp": 0, "dataChange": True}
    return json.dumps({"remove": remove}) + "\n"


@pytest.mark.parametrize("spelled", ["../{table}/{name}", "a/../{name}", "../{table}/x/../{name}"])
def test_a_file_that_the_log_names_by_way_of_a_parent_directory_stays(
    tmp_path: Path, spelled: str
) -> None:
    root = tmp_path / "table"
    table = DeltaTable(root, must_exist=False)
    table.append(numbered_with_nulls(1))
    table.append(numbered_with_nulls(2))
    name = table.snapshot().files()["path"].to_pylist()[0]
    size = (root / name).stat().st_size
    odd = spelled.format(table="table", name=name)
    (root / commit_path(2)).write_text(remove_action(name) + add_action(odd, size))
    assert name not in vacuumed(root)
    assert (root / name).exists()


def test_removed_paths_outside_of_the_table_are_not_deleted(tmp_path: Path) -> None:
    outside = tmp_path / "precious.parquet"
    outside.write_bytes(b"precious")
    aged([outside], 1000)
    root = tmp_path / "table"
    DeltaTable(root, must_exist=False).append(numbered_with_nulls(1))
    spellings = ["../precious.parquet", str(outside), f"file://{outside}", f"file:{outside}"]
    (root / commit_path(1)).write_text("".join(map(remove_action, spellings)))
    assert vacuumed(root) == set()
    assert outside.read_bytes() == b"precious"


def test_a_link_out_of_the_table_is_not_deleted_through(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "inner").mkdir(parents=True)
    for path in ("precious.parquet", "inner/precious.parquet"):
        (outside / path).write_bytes(b"precious")
    root = tmp_path / "table"
    DeltaTable(root, must_exist=False).append(numbered_with_nulls(1))
    (root / "link").symlink_to(outside)
    store = LocalStore(root)
    for path in ("link/precious.parquet", "link/inner/precious.parquet"):
        with pytest.raises(StorageFailure, match="out of the table"):
            store.delete([path])
        assert (root / path).exists()


def test_a_linked_sidecar_directory_keeps_its_files(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious.parquet").write_bytes(b"precious")
    aged([outside / "precious.parquet"], 24 * 100)
    root = tmp_path / "table"
    table = DeltaTable(root, must_exist=False)
    for number in range(3):
        properties = {"delta.feature.v2Checkpoint": "supported"} if number == 0 else {}
        table.append(numbered_with_nulls(number), properties=properties)
    table.checkpoint()
    (root / "_delta_log" / "_sidecars").symlink_to(outside)
    store = LocalStore(root)
    with pytest.raises(StorageFailure, match="out of the table"):
        clean_log(store, Snapshot.load(store), clock=in_days(100), dry_run=False)  # type: ignore[arg-type]
    assert (outside / "precious.parquet").exists()
    assert DeltaTable(root).snapshot().num_records == 3


def test_a_table_that_is_itself_reached_by_a_link_is_vacuumed(tmp_path: Path) -> None:
    real = tmp_path / "real"
    DeltaTable(real, must_exist=False).append(numbered_with_nulls(1))
    (real / "sub").mkdir()
    (real / "sub" / "garbage.parquet").write_bytes(b"x")
    (tmp_path / "link").symlink_to(real)
    assert vacuumed(tmp_path / "link") == {"sub/garbage.parquet"}


KILLED = """
import os, signal, sys, time
from dagster_delta.storage.local_store import LocalStore
from dagster_delta.table.log_upkeep.cleanup import clean_log
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.operations.vacuum import VacuumOptions, vacuum_table

what, root, step = sys.argv[1], sys.argv[2], int(sys.argv[3])
done = 0

def counted(call):
    def counting(*arguments, **options):
        global done
        done += 1
        if done == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments, **options)
    return counting

store = LocalStore(root)
snapshot = Snapshot.load(store)
clock = lambda: time.time_ns() // 1_000_000
for name in ("unlink", "link", "replace", "rename", "rmdir"):
    setattr(os, name, counted(getattr(os, name)))
if what == "vacuum":
    vacuum_table(store, snapshot, VacuumOptions(dry_run=False), clock=clock)
else:
    clean_log(store, snapshot, clock=clock, dry_run=False)
"""

OLDEST = 3
"""The oldest version inside of the retention."""


def retained_table(root: Path) -> DeltaTable:
    """Versions 0 to 5, of which those from 3 on are inside of the retention of one hour."""
    table = DeltaTable(root, must_exist=False)
    keep = {
        "delta.deletedFileRetentionDuration": "interval 1 hours",
        "delta.logRetentionDuration": "interval 1 hours",
    }
    for number in range(3):
        table.append(numbered_with_nulls(number), properties=keep)
    table.optimize()
    table.append(numbered_with_nulls(10, 11))
    table.delete("id = 10")
    log = root / "_delta_log"
    aged((path for path in root.iterdir() if path.is_file()), 72)
    aged((log / f"{version:020}.json" for version in range(OLDEST + 1)), 72)
    third = log / f"{OLDEST:020}.json"
    lines = [json.loads(line) for line in third.read_text().splitlines()]
    for line in lines:
        for action in ("remove", "commitInfo"):
            if action in line:
                key = {"remove": "deletionTimestamp", "commitInfo": "timestamp"}[action]
                line[action][key] -= 3 * DAY_MS
    third.write_text("".join(json.dumps(line) + "\n" for line in lines))
    aged([third], 72)
    for checksum in log.glob("*.crc"):
        checksum.unlink()
    table = DeltaTable(root)
    table.checkpoint()
    return table


@pytest.mark.exhaustive
@pytest.mark.parametrize("what", ["vacuum", "clean_log"])
def test_a_kill_at_any_step_leaves_every_retained_version_to_be_read(
    tmp_path: Path, what: str
) -> None:
    root = tmp_path / "table"
    retained_table(root)
    expected = {version: ids_of(root, version) for version in range(OLDEST, 6)}
    files_before = {path.name for path in root.rglob("*.parquet")}
    appended: list[int] = []
    stop = threading.Event()

    def write() -> None:
        while not stop.wait(0.2):
            DeltaTable(root).append(pa.table({"id": [1000 + len(appended)], "v": ["x"]}))
            appended.append(1000 + len(appended))

    kills = 0
    for step in range(1, 40):
        stop.clear()
        writer = threading.Thread(target=write)
        writer.start()
        ended = subprocess.run(
            [sys.executable, "-c", KILLED, what, str(root), str(step)],
            check=False,
            capture_output=True,
            text=True,
        )
        stop.set()
        writer.join()
        for version, ids in expected.items():
            assert ids_of(root, version) == ids, (step, version)
        current = DeltaTable(root).snapshot().scan(columns=["id"]).to_arrow()["id"].to_pylist()
        assert sorted(current) == sorted(expected[5] + appended)
        if ended.returncode == 0:
            break
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        kills += 1
    assert ended.returncode == 0, ended.stderr
    assert kills >= 2
    gone = files_before - {path.name for path in root.rglob("*.parquet")}
    if what == "vacuum":
        assert len(gone) == 3
    else:
        assert not (root / commit_path(0)).exists()
