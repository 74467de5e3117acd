"""What hostile tables are written with: actions, commits, data files and deletion vectors."""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

Action = dict[str, Any] | str
Build = Callable[["Draft"], object]


@dataclass(frozen=True)
class HostileTable:
    """A table that breaks the protocol, or that is meant to do harm."""

    name: str
    build: Build


def field(name: object, type_: object = "long", **metadata_: object) -> dict[str, object]:
    """A field of a schema string."""
    return {"name": name, "type": type_, "nullable": True, "metadata": metadata_}


def schema(*fields: object) -> str:
    """A schema string."""
    return json.dumps({"type": "struct", "fields": list(fields)})


def protocol(reader: object = 1, writer: object = 2, *features: object) -> dict[str, Any]:
    """A protocol action; with features, both lists hold them."""
    action: dict[str, Any] = {"minReaderVersion": reader, "minWriterVersion": writer}
    if features:
        action |= {"readerFeatures": list(features), "writerFeatures": list(features)}
    return {"protocol": action}


def metadata(schema_: object = None, **more: object) -> dict[str, Any]:
    """A metaData action of a table with the column `id`."""
    action = {
        "id": "1b5b0c5e-0000-4000-8000-000000000000",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema(field("id")) if schema_ is None else schema_,
        "partitionColumns": [],
        "configuration": {},
        "createdTime": 1,
    }
    return {"metaData": action | more}


def add(path: object = "a.parquet", **more: object) -> dict[str, Any]:
    """An add action; its size is that of the data file that `Draft.data` writes."""
    action: dict[str, Any] = {
        "path": path,
        "partitionValues": {},
        "size": 500,
        "modificationTime": 1,
        "dataChange": True,
    }
    return {"add": action | more}


def dv_bytes(
    positions: Iterable[int] = (1,), *, magic: int = 1681511377, data: bytes | None = None
) -> bytes:
    """A deletion vector as it is stored: size, magic and bitmap, checksum; all big or little endian
    as the specification says.
    """
    bitmap = BitMap64(positions).serialize() if data is None else data
    body = struct.pack("<i", magic) + bitmap
    return struct.pack(">i", len(body)) + body + struct.pack(">I", zlib.crc32(body))


class Draft:
    """A table that is being written, and the directory beside it that nobody may touch."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "table"
        self.outside = directory / "outside"
        self.log = self.root / "_delta_log"

    def begin(self) -> None:
        """Make the directories, a data file in the table, and victims outside of it."""
        self.log.mkdir(parents=True)
        self.outside.mkdir()
        self.data("a.parquet")
        self.data("../outside/victim.parquet")
        (self.outside / "victim.txt").write_text("not to be touched")
        (self.outside / "_delta_log").mkdir()
        (self.outside / "_delta_log" / f"{0:020}.json").write_text("{}")

    def commit(self, version: int, *actions: Action) -> None:
        """Write a commit file."""
        lines = [action if isinstance(action, str) else json.dumps(action) for action in actions]
        self.raw(f"{version:020}.json", "\n".join(lines).encode("utf-8", "surrogatepass"))

    def start(self, *actions: Action) -> None:
        """Commit 0: protocol, metadata and the sound data file; and the actions as commit 1."""
        self.commit(0, protocol(), metadata(), add())
        if actions:
            self.commit(1, *actions)

    def raw(self, name: str, content: bytes) -> None:
        """Write a file of the log."""
        (self.log / name).write_bytes(content)

    def data(self, path: str, table: pa.Table | None = None, **options: Any) -> int:
        """Write a Parquet file with ids 0 to 2; its size."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": pa.array(range(3), pa.int64())}) if table is None else table,
                       target, **options)  # fmt: skip
        return target.stat().st_size

    def file(self, path: str, content: bytes) -> None:
        """Write a file of the table."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)

    def fifo(self, path: str) -> None:
        """Make a FIFO, at which an ordinary open waits for ever."""
        os.mkfifo(self.root / path)

    def link(self, path: str, target: str) -> None:
        """Make a symbolic link."""
        (self.root / path).symlink_to(target)


def started(*actions: Action) -> Build:
    """Builds a sound table whose second commit holds the actions."""
    return lambda draft: draft.start(*actions)


def after_start(act: Callable[..., object], *arguments: object) -> Build:
    """Builds a sound table, to which `act(draft, *arguments)` is then done."""

    def build(draft: Draft) -> None:
        draft.start()
        act(draft, *arguments)

    return build
