"""A file system of fsspec that fails while Arrow reads through it, or asks for credentials."""

from __future__ import annotations

import os
import random
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

from dagster_delta.errors import InvalidArgument, StorageFailure
from dagster_delta.storage.fsspec_store import FsspecStore
from dagster_delta.table.delta_table import DeltaTable

LARGE = random.Random(1)
SECRET = "https://signed.example/?token=SECRET"


class _Unreachable(Exception):
    """As the client of some storage raises it; its text holds what must not be shown."""


@pytest.fixture
def table() -> Iterator[FsspecStore]:
    """A table of a file that is fetched whole and one that is read in parts, below `memory://`."""
    name = f"/{uuid.uuid4().hex}"
    files = fsspec.filesystem("memory")
    source = DeltaTable("memory://fsspec-outages/t", must_exist=False)
    source.append(pa.table({"id": [1, 2, 3]}))
    source.append(pa.table({"id": [LARGE.randrange(1 << 60) for _ in range(200_000)]}))
    for meta in source.store.list_recursive():
        files.pipe_file(f"{name}/{meta.path}", source.store.read(meta.path))
    yield FsspecStore(f"memory:/{name}")
    files.rm(name, recursive=True)
    source.store.delete([meta.path for meta in source.store.list_recursive()])


def _refuse(*_: object, **__: object) -> Any:
    raise _Unreachable(SECRET)


@pytest.mark.parametrize(
    ("owner", "method"),
    [
        (MemoryFile, "read"),
        (MemoryFile, "seek"),
        (MemoryFileSystem, "_open"),
        (MemoryFileSystem, "cat_file"),
    ],
)
def test_a_file_system_that_fails_while_a_data_file_is_read_is_a_storage_failure(
    table: FsspecStore, owner: type, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = DeltaTable("", store=table).snapshot().scan()
    assert scan.to_arrow().num_rows == 200_003
    monkeypatch.setattr(owner, method, _refuse, raising=False)
    with pytest.raises(StorageFailure) as caught:
        scan.to_arrow()
    assert str(caught.value.file).endswith(".parquet")
    assert "SECRET" not in str(caught.value)


def test_an_outage_while_a_file_is_looked_up_does_not_make_it_missing(
    table: FsspecStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = DeltaTable("", store=table).snapshot().scan()
    monkeypatch.setattr(MemoryFileSystem, "info", _refuse)
    with pytest.raises(StorageFailure):
        scan.to_arrow()


def test_a_file_system_that_finds_no_credentials_is_a_storage_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fsspec, "filesystem", _refuse)
    with pytest.raises(StorageFailure, match="_Unreachable") as caught:
        FsspecStore("sftp://host/table")
    assert "SECRET" not in str(caught.value)


class _Demanding(MemoryFileSystem):  # type: ignore[misc]
    """A file system that a program registers itself, and that refuses its options."""

    protocol = "demanding"
    cachable = False

    def __init__(self, *_: object, **__: object) -> None:
        raise ValueError("no option 'SECRET'")


def test_a_registered_file_system_that_refuses_its_options_is_no_unknown_storage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "demanding", _Demanding)
    with pytest.raises(InvalidArgument, match="names of the storage options") as caught:
        FsspecStore("demanding://host/table")
    assert "SECRET" not in str(caught.value)


def test_a_directory_is_no_file(table: FsspecStore) -> None:
    with pytest.raises(FileNotFoundError):
        table.open_input("_delta_log")


def test_a_file_reads_at_any_place(table: FsspecStore) -> None:
    paths = [meta.path for meta in table.list_recursive() if meta.path.endswith(".parquet")]
    counts = [pq.read_table(table.open_input(path)).num_rows for path in paths]
    assert sorted(counts) == [3, 200_000]


def test_a_closed_file_is_closed_in_its_file_system(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"content")
    file = FsspecStore(f"local://{tmp_path}").open_input("a")
    assert file.read(3) == b"con"
    file.close()
    held = [Path(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    assert tmp_path / "a" not in [link.resolve() for link in held if link.exists()]
