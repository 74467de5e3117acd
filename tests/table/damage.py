"""Damage to the files of tables, one file at a time, and what reading and writing make of it.

Run as a module for more than the tests take time for: `python -m tests.table.damage 1000 7` makes
a thousand trials with the seed 7, each in a process of its own.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from dagster_delta.errors import DeltaError
from dagster_delta.table.delta_table import DeltaTable

Rows = list[tuple[Any, ...]]

_FEATURES = {
    "delta.enableDeletionVectors": "true",
    "delta.enableChangeDataFeed": "true",
    "delta.checkpointInterval": "1000",
}


def _frame(first: int, count: int) -> Any:
    ids = range(first, first + count)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "day": [f"d{each % 3}" for each in ids],
            "name": [f"name {each % 7}" for each in ids],
            "score": [each * 1.5 if each % 5 else None for each in ids],
        }
    )


def _fill(root: Path, properties: dict[str, str]) -> DeltaTable:
    table = DeltaTable(str(root), must_exist=False)
    table.append(_frame(0, 40), partition_by=["day"])
    table.set_properties({**_FEATURES, **properties})
    table.append(_frame(40, 20))
    table.delete("id % 8 = 3")
    table.checkpoint()
    table.update({"score": "score + 1"}, where="id = 10 OR id = 45")
    table.append(_frame(60, 10))
    return table


def build_tables(directory: Path) -> dict[str, Path]:
    """Small tables: with all of its log, with only what follows a checkpoint, and with a V2 one."""
    made = {}
    for name, properties in (
        ("whole", {}),
        ("cleaned", {}),
        ("v2", {"delta.feature.v2Checkpoint": "supported", "delta.checkpointPolicy": "v2"}),
    ):
        root = directory / name
        _fill(root, properties)
        if name != "whole":
            for version in range(3):
                for kind in ("json", "crc"):
                    (root / "_delta_log" / f"{version:020}.{kind}").unlink()
        made[name] = root
    return made


def all_files(root: Path) -> list[str]:
    """Paths of all files of a table, relative to its root."""
    return sorted(each.relative_to(root).as_posix() for each in root.rglob("*") if each.is_file())


def _damaged(data: bytes, how: str, random_: random.Random) -> bytes:
    match how:
        case "flip":
            changed = bytearray(data)
            changed[random_.randrange(len(data))] ^= 1 << random_.randrange(8)
            return bytes(changed)
        case "digit":
            places = [at for at, each in enumerate(data) if 48 <= each <= 57]
            at = random_.choice(places or [0])
            return data[:at] + bytes([48 + (data[at] + 1) % 10]) + data[at + 1 :]
        case "cut":
            return data[: random_.randrange(len(data))]
        case "line":
            lines = data.splitlines(keepends=True)
            return b"".join(lines[: random_.randrange(max(1, len(lines)))])
    start = random_.randrange(len(data))
    length = min(len(data) - start, random_.choice((4, 64, 512)))
    return data[:start] + bytes(length) + data[start + length :]


@dataclass(frozen=True)
class Outcome:
    """What became of one trial."""

    table: str
    file: str
    how: str
    operation: str
    verdict: str
    """same, refused, or what went wrong."""
    detail: str = ""

    @property
    def is_bad(self) -> bool:
        """Whether rows were lost or made up, or the error was none of ours."""
        return self.verdict not in {"same", "refused"}


def rows_of(root: Path) -> Rows:
    """All rows, sorted."""
    found = DeltaTable(str(root)).snapshot().scan(verify_checksums=True).to_arrow()
    return sorted(map(tuple, (each.values() for each in found.to_pylist())))


def feed_of(root: Path) -> Rows:
    """The rows of the change feed since the checkpoint, sorted."""
    table = DeltaTable(str(root))
    found = table.changes(starting_version=5).to_arrow().drop_columns(["_commit_timestamp"])
    return sorted((repr(tuple(each.values())),) for each in found.to_pylist())


def filtered(root: Path) -> Rows:
    """Rows that statistics and partition values help to find."""
    scan = (
        DeltaTable(str(root))
        .snapshot()
        .scan(where="id >= 38 AND day <> 'd1'", verify_checksums=True)
    )
    return sorted(map(tuple, (each.values() for each in scan.to_arrow().to_pylist())))


READS: dict[str, Callable[[Path], Rows]] = {"read": rows_of, "feed": feed_of, "filter": filtered}


def _merge(table: DeltaTable) -> None:
    merge = table.merge(_frame(55, 10), on="t.id = s.id", source_alias="s", target_alias="t")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()


WRITES: dict[str, Callable[[DeltaTable], object]] = {
    "append": lambda table: table.append(_frame(100, 5)),
    "delete": lambda table: table.delete("id < 12 OR name = 'name 3'"),
    "update": lambda table: table.update({"name": "concat(name, '!')"}, where="id > 50"),
    "merge": _merge,
    "optimize": lambda table: table.optimize(),
    "vacuum": lambda table: table.vacuum(0, enforce_retention=False, dry_run=False),
    "checkpoint": lambda table: table.checkpoint(),
    "clean_log": lambda table: table.clean_log(0, enforce_retention=False, dry_run=False),
}


def _attempt(act: Callable[[], Rows | None], expected: Rows | None) -> tuple[str, str]:
    try:
        found = act()
    except DeltaError as error:
        return ("refused" if error.file or error.version is not None else "unnamed", repr(error))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
        return f"raised {type(error).__name__}", str(error)[:200]
    return ("same", "") if found == expected else ("OTHER ROWS", "")


def try_damage(
    source: Path, file: str, how: str, operation: str, random_: random.Random, scratch: Path
) -> Iterator[Outcome]:
    """Damage one file of a copy of a table, and read it or write to it.

    After a write the damage is mended: then the rows have to be there that it should have left.
    """
    root = scratch / "copy"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(source, root, copy_function=os.link)
    data = (root / file).read_bytes()
    (root / file).unlink()
    if how != "missing":
        (root / file).write_bytes(_damaged(data, how, random_))

    def outcome(operation: str, verdict: tuple[str, str]) -> Outcome:
        return Outcome(source.name, file, how, operation, *verdict)

    if operation in READS:
        read = READS[operation]
        yield outcome(operation, _attempt(lambda: read(root), read(source)))
        return
    write = WRITES[operation]

    def run() -> None:
        write(DeltaTable(str(root)))

    verdict = _attempt(run, None)
    yield outcome(operation, verdict)
    sound = scratch / "sound"
    if verdict[0] == "same":
        shutil.rmtree(sound, ignore_errors=True)
        shutil.copytree(source, sound, copy_function=os.link)
        write(DeltaTable(str(sound)))
    expected = rows_of(sound if verdict[0] == "same" else source)
    yield outcome(f"read after {operation}", _attempt(lambda: rows_of(root), expected))
    (root / file).unlink(missing_ok=True)
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_bytes(data)
    mended = _attempt(lambda: rows_of(root), expected)
    if mended[0] == "refused":
        mended = ("LASTING DAMAGE", mended[1])
    yield outcome(f"mended after {operation}", mended)


LAST_COMMIT = f"_delta_log/{5:020}.json"
"""Without it the table is the one before: nothing tells that it was there."""
HOWS = ("flip", "flip", "flip", "digit", "cut", "line", "zeros", "missing")


def main(trials: int, seed: int) -> None:
    """Print what is bad, and how often each verdict was reached."""
    logging.disable(logging.CRITICAL)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        tables = list(build_tables(directory).values())
        for trial in range(trials):
            random_ = random.Random(f"{seed}.{trial}")
            root = random_.choice(tables)
            file = random_.choice(all_files(root))
            how, operation = random_.choice(HOWS), random_.choice([*READS, *READS, *WRITES])
            if how == "missing" and file == LAST_COMMIT:
                continue
            chosen = f"{root.name} {file} {how} {operation}"
            for line in _apart(root, file, how, operation, random_, directory / "scratch"):
                verdict = line.partition("|")[0]
                counts[verdict] += 1
                is_bad = not verdict.endswith((" same ", " refused "))
                if is_bad:
                    sys.stdout.write(f"{trial} {chosen} {line}\n")
    for key, count in sorted(counts.items()):
        sys.stdout.write(f"{key} {count}\n")


def _apart(*arguments: Any) -> list[str]:
    """The outcomes of a trial in a process of its own, which may crash."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            _report(writing, arguments)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as lines:
        found = [line.replace("\n", "") for line in lines]
    _, status = os.waitpid(child, 0)
    return [*found, f"any crash CRASHED |{status}"] if status else found


def _report(writing: int, arguments: tuple[Any, ...]) -> None:
    with os.fdopen(writing, "w") as out:
        for each in try_damage(*arguments):
            file = each.file
            kind = "checkpoint" if "checkpoint" in file else Path(file).suffix
            kind = "change data" if file.startswith("_change") else kind
            group = each.operation if each.operation in READS else "write"
            detail = each.detail.replace("\n", " ")
            out.write(f"{kind} {group} {each.verdict} |{each.operation}: {detail}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
