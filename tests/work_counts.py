"""What an operation costs in things that can be counted: requests, names listed, files opened,
bytes read, functions called. Unlike its time, none of them depends on the machine.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from dagster_delta import DeltaTable
from dagster_delta.protocol.actions import AddFile
from dagster_delta.protocol.log.commit_file import CommitContents, decode_commit
from dagster_delta.protocol.log.commit_writer import encode_actions, encode_commit
from dagster_delta.protocol.log.paths import checksum_path, commit_path
from dagster_delta.protocol.log.version_checksum import (
    encode_version_checksum,
    version_checksum_after,
)
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.storage.object_store import ObjectMeta, ObjectStore

ROW = pa.table({"id": pa.array([1], pa.int64()), "name": ["x"], "value": [0.5]})


class Work(msgspec.Struct):
    """What was counted."""

    calls: int = 0
    """Calls of Python functions, in all threads that were started meanwhile and in this one."""
    names_listed: int = 0
    """Entries of the local directories that were read."""
    paths_opened: list[str] = msgspec.field(default_factory=list)
    """Local files, by their whole path."""

    def opened(self, ending: str) -> int:
        """How many local files with such a name were opened."""
        return sum(path.endswith(ending) for path in self.paths_opened)


def count_work(action: Callable[[], object]) -> Work:
    """The work of an action, which runs once before: what is imported and cached does not count."""
    action()
    work, lock = Work(), threading.Lock()
    listdir, scandir, open_file, os_file = os.listdir, os.scandir, os.open, pa.OSFile

    def list_names(path: Any = ".") -> list[str]:
        names = listdir(path)
        work.names_listed += len(names)
        return names

    def scan_names(path: Any = ".") -> Any:
        work.names_listed += len(listdir(path))
        return scandir(path)

    def open_path(path: Any, *options: Any, **named: Any) -> int:
        work.paths_opened.append(os.fspath(path))
        return open_file(path, *options, **named)

    def open_arrow(path: Any, *options: Any) -> Any:
        work.paths_opened.append(os.fspath(path))
        return os_file(path, *options)

    def count_call(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            with lock:
                work.calls += 1

    patched: Any = os
    patched.listdir, patched.scandir, patched.open = list_names, scan_names, open_path
    pa.OSFile = open_arrow
    threading.setprofile(count_call)
    sys.setprofile(count_call)
    try:
        action()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        patched.listdir, patched.scandir, patched.open = listdir, scandir, open_file
        pa.OSFile = os_file
    return work


class RequestStore(MemoryStore):
    """A store in the cloud, as far as it counts: each call is a request."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[str] = []
        self.names_listed = 0
        self.bytes_read = 0

    def reset(self) -> None:
        """Count from here on."""
        self.requests, self.names_listed, self.bytes_read = [], 0, 0

    def read(self, path: str) -> bytes:
        data = super().read(path)
        self._note("read", path, len(data))
        return data

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        data = super().read(path)[offset : offset + length]
        self._note("range", path, len(data))
        return data

    def head(self, path: str) -> ObjectMeta | None:
        self._note("head", path)
        return super().head(path)

    def list_from(self, directory: str, start: str = "") -> Iterator[ObjectMeta]:
        self._note("list", directory)
        for meta in super().list_from(directory, start):
            self.names_listed += 1
            yield meta

    def list_recursive(self, directory: str = "") -> Iterator[ObjectMeta]:
        self._note("list", directory)
        for meta in super().list_recursive(directory):
            self.names_listed += 1
            yield meta

    def put_if_absent(self, path: str, data: bytes) -> None:
        self._note("put", path)
        super().put_if_absent(path, data)

    def put(self, path: str, data: bytes) -> None:
        self._note("put", path)
        super().put(path, data)

    def open_input(self, path: str) -> Any:
        return pa.PythonFile(_CountedInput(self, path, MemoryStore.read(self, path)), mode="r")

    def _note(self, kind: str, path: str, num_bytes: int = 0) -> None:
        self.requests.append(f"{kind} {path.rpartition('/')[2]}")
        self.bytes_read += num_bytes


class _CountedInput:
    """A file of which each read is a request."""

    closed = False

    def __init__(self, store: RequestStore, path: str, data: bytes) -> None:
        self._store, self._path, self._data, self._at = store, path, data, 0

    def read(self, size: int = -1) -> bytes:
        end = len(self._data) if size < 0 else self._at + size
        found = self._data[self._at : end]
        self._at += len(found)
        self._store._note("range", self._path, len(found))
        return found

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, len(self._data))[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        return len(self._data)

    def close(self) -> None:
        self.closed = True


def extend_log(store: ObjectStore, num_versions: int) -> None:
    """Commits of one file each, which is not there, up to a number of versions, with their
    checksums. The table has at least one commit with a file.
    """
    table = DeltaTable(store.location.uri, store=store)
    snapshot = table.snapshot()
    info, add = _sample_commit(store, snapshot.version)
    checksum = snapshot.checksum
    for version in range(snapshot.version + 1, num_versions):
        info |= {"txnId": str(uuid.uuid4()), "readVersion": version - 1}
        file = replace(add, path=f"part-{version}-{uuid.uuid4()}.parquet")
        commit = encode_commit(info, encode_actions(CommitContents(adds=(file,))))
        checksum = version_checksum_after(checksum, [(version, commit)])
        assert checksum is not None
        store.put_if_absent(commit_path(version), commit)
        store.put(checksum_path(version), encode_version_checksum(checksum))


def add_files(
    store: ObjectStore, num_files: int, change: Callable[[AddFile, int], AddFile]
) -> None:
    """One commit that adds files, which are not there, and a checkpoint after it. `change` makes
    each of the latest commit's file and its number.
    """
    table = DeltaTable(store.location.uri, store=store)
    version = table.version()
    info, add = _sample_commit(store, version)
    info |= {"txnId": str(uuid.uuid4()), "readVersion": version}
    adds = tuple(
        change(replace(add, path=f"part-{n}-{uuid.uuid4()}.parquet"), n) for n in range(num_files)
    )
    commit = encode_commit(info, encode_actions(CommitContents(adds=adds)))
    store.put_if_absent(commit_path(version + 1), commit)
    checksum = version_checksum_after(table.snapshot().checksum, [(version + 1, commit)])
    assert checksum is not None
    store.put(checksum_path(version + 1), encode_version_checksum(checksum))
    DeltaTable(store.location.uri, store=store).checkpoint()


def _sample_commit(store: ObjectStore, version: int) -> tuple[dict[str, Any], AddFile]:
    sample = store.read(commit_path(version))
    info = json.loads(sample.splitlines()[0])["commitInfo"]
    del info["contentCrc32"]
    return info, decode_commit(sample, version=version).adds[0]
