"""What only a file system does: crashes, file systems without links, and files in the way."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_delta.errors import ConditionalPutUnsupported, InvalidArgument, StorageFailure
from dagster_delta.storage import file_publication
from dagster_delta.storage.local_store import LocalStore

COMMIT = "_delta_log/00000000000000000000.json"


class _Crash(BaseException):
    """The process dies here, as far as the files can tell."""


def _raises(error: BaseException) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "table")


@pytest.fixture
def without_hard_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", _raises(OSError(errno.EPERM, "Operation not permitted")))


def _files(store: LocalStore) -> list[str]:
    return sorted(meta.path for meta in store.list_recursive())


@pytest.mark.usefixtures("without_hard_links")
def test_without_hard_links_an_exclusive_rename_creates_the_commit(store: LocalStore) -> None:
    store.put_if_absent(COMMIT, b"first")
    with pytest.raises(FileExistsError):
        store.put_if_absent(COMMIT, b"second")
    assert store.read(COMMIT) == b"first"
    assert _files(store) == [COMMIT]


@pytest.mark.usefixtures("without_hard_links")
@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS])
def test_without_links_and_exclusive_renames_a_commit_is_refused(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(ctypes, "get_errno", lambda: code)
    monkeypatch.setattr(file_publication, "_exclusive_rename", lambda: lambda *_: -1)
    with pytest.raises(ConditionalPutUnsupported, match="another one") as caught:
        store.put_if_absent(COMMIT, b"first")
    assert caught.value.file == COMMIT
    assert _files(store) == []


@pytest.mark.usefixtures("without_hard_links")
def test_a_platform_without_exclusive_renames_is_refused(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_publication, "_exclusive_rename", lambda: None)
    with pytest.raises(ConditionalPutUnsupported):
        store.put_if_absent(COMMIT, b"first")
    assert _files(store) == []


@pytest.mark.parametrize("operation", ["open", "write", "link", "replace"])
def test_a_full_disk_leaves_nothing_behind(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    def create() -> None:
        if operation == "link":
            store.put_if_absent(COMMIT, b"first")
            return
        with store.open_output(COMMIT) as stream:
            stream.write(b"first")

    (Path(store.location.uri) / "_delta_log").mkdir(parents=True)
    monkeypatch.setattr(os, operation, _raises(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(StorageFailure, match="No space left") as caught:
        create()
    monkeypatch.undo()
    assert caught.value.table == store.location.uri
    assert caught.value.file == COMMIT
    assert _files(store) == []


@pytest.mark.parametrize("operation", ["write", "link"])
def test_a_crash_leaves_at_most_a_hidden_file(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    monkeypatch.setattr(os, operation, _raises(_Crash()))
    monkeypatch.setattr(os, "unlink", _raises(_Crash()))
    with pytest.raises(_Crash):
        store.put_if_absent(COMMIT, b"first")
    monkeypatch.undo()
    left = [Path(path).name for path in _files(store)]
    assert all(name.startswith(".") and name.endswith(".tmp") for name in left)
    assert store.head(COMMIT) is None
    store.put_if_absent(COMMIT, b"second")
    assert store.read(COMMIT) == b"second"


def test_a_crash_after_the_link_leaves_the_commit(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "unlink", _raises(_Crash()))
    with pytest.raises(_Crash):
        store.put_if_absent(COMMIT, b"first")
    monkeypatch.undo()
    assert store.read(COMMIT) == b"first"
    with pytest.raises(FileExistsError):
        store.put_if_absent(COMMIT, b"second")


def test_a_file_that_is_being_written_is_hidden(store: LocalStore) -> None:
    stream = store.open_output("p=1/a.parquet")
    stream.write(b"part")
    (name,) = [Path(meta.path).name for meta in store.list_from("p=1")]
    assert name.startswith(".")
    assert name.endswith(".tmp")
    stream.close()
    assert _files(store) == ["p=1/a.parquet"]


def test_an_error_after_closing_keeps_the_file(store: LocalStore) -> None:
    with suppress(ZeroDivisionError), store.open_output("a.parquet") as stream:
        stream.write(b"whole")
        stream.close()
        raise ZeroDivisionError
    assert store.read("a.parquet") == b"whole"


def test_a_file_that_cannot_be_finished_is_an_error_and_not_there(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "replace", _raises(OSError(errno.EIO, "Input/output error")))
    stream = store.open_output("a.parquet")
    stream.write(b"part")
    with pytest.raises(StorageFailure, match="Input/output error"):
        stream.close()
    monkeypatch.undo()
    stream.close()
    assert _files(store) == []


def test_a_file_where_a_directory_should_be_is_no_lost_race(store: LocalStore) -> None:
    store.put("_delta_log", b"a file")
    with pytest.raises(StorageFailure):
        store.put_if_absent(COMMIT, b"first")
    with pytest.raises(StorageFailure):
        store.put(COMMIT, b"first")
    with pytest.raises(StorageFailure):
        store.open_output(COMMIT)


def test_waiting_for_the_disk_covers_content_before_name_and_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path, {"fsync": "true"})
    store.put("a", b"")
    steps: list[str] = []
    for operation in ("fsync", "link", "replace"):
        real = getattr(os, operation)

        def record(*arguments: object, _real: object = real, _name: str = operation) -> object:
            steps.append(_name)
            return _real(*arguments)  # type: ignore[operator]

        monkeypatch.setattr(os, operation, record)
    store.put_if_absent("b", b"x")
    store.put("a", b"x")
    with store.open_output("c") as stream:
        stream.write(b"x")
    assert steps == ["fsync", "link", "fsync"] + ["fsync", "replace", "fsync"] * 2


def test_waiting_for_the_disk_covers_the_names_of_new_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    real = os.fsync

    def record(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    LocalStore(tmp_path / "new", {"fsync": "true"}).put("a/b/c", b"x")
    directories = [tmp_path, tmp_path / "new", tmp_path / "new/a", tmp_path / "new/a/b"]
    above = [each.stat().st_ino for each in directories]
    assert [*synced[:3], synced[-1]] == above


def test_without_the_option_nothing_waits_for_the_disk(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", _raises(AssertionError()))
    store.put_if_absent("b", b"x")
    store.put("a", b"x")
    store.open_output("c").close()
    assert _files(store) == ["a", "b", "c"]


def test_an_option_that_is_neither_true_nor_false_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="fsync"):
        LocalStore(tmp_path, {"fsync": "maybe"})


def test_a_link_to_a_directory_is_not_followed_out_of_the_table(
    store: LocalStore, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious.parquet").write_bytes(b"x")
    store.put("a", b"x")
    (Path(store.location.uri) / "link").symlink_to(tmp_path / "outside")
    assert _files(store) == ["a"]


def test_a_file_that_vanishes_during_a_listing_is_left_out(store: LocalStore) -> None:
    for name in ("a", "b", "c"):
        store.put(f"log/{name}", b"x")
    listing = store.list_from("log")
    assert next(listing).path == "log/a"
    store.delete(["log/b"])
    assert [meta.path for meta in listing] == ["log/c"]


def test_a_directory_that_cannot_be_read_is_a_failure_and_not_empty(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = _raises(PermissionError(errno.EACCES, "Permission denied"))
    monkeypatch.setattr(os, "scandir", refusal)
    monkeypatch.setattr(os, "listdir", refusal)
    with pytest.raises(StorageFailure, match="Permission denied"):
        list(store.list_from("_delta_log"))
    with pytest.raises(StorageFailure, match="Permission denied"):
        list(store.list_recursive())


def test_reads_outside_the_table_follow_absolute_paths(store: LocalStore, tmp_path: Path) -> None:
    elsewhere = tmp_path / "another table%20" / "a b.bin"
    elsewhere.parent.mkdir()
    elsewhere.write_bytes(b"shallow clone")
    for path in (f"file:{elsewhere}", f"file://{elsewhere}", str(elsewhere)):
        assert store.read(path) == b"shallow clone"
        assert store.local_path(path) == str(elsewhere)


def test_a_parquet_writer_may_keep_the_stream(store: LocalStore) -> None:
    table = pa.table({"a": [1, 2, 3]})
    with store.open_output("a.parquet") as stream, pq.ParquetWriter(stream, table.schema) as writer:
        writer.write_table(table)
    assert pq.read_table(store.local_path("a.parquet")) == table


@pytest.mark.parametrize("kind", ["put", "open_output"])
def test_a_file_is_created_in_a_directory_that_others_keep_removing(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, make, removed = LocalStore(tmp_path), os.makedirs, 0

    def make_and_lose(path: str, **options: Any) -> None:
        nonlocal removed
        make(path, **options)
        if removed < 9:
            removed += 1
            Path(path).rmdir()

    monkeypatch.setattr(os, "makedirs", make_and_lose)
    if kind == "put":
        store.put("p=1/a", b"x")
    else:
        with store.open_output("p=1/a") as stream:
            stream.write(b"x")
    assert removed == 9
    assert store.read("p=1/a") == b"x"


def test_a_directory_is_no_object_to_delete(store: LocalStore) -> None:
    store.put("a/b", b"x")
    store.delete(["a", "a/b"])
    assert _files(store) == []
