"""URIs and paths: what is decoded, what is not, and what is refused."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_delta.errors import InvalidArgument, StorageFailure
from dagster_delta.orchestration.io.io_manager import DeltaIOManager
from dagster_delta.storage import open_store
from dagster_delta.storage.cloud.clouds import CLOUDS
from dagster_delta.storage.cloud.store import CloudStore
from dagster_delta.storage.local_store import LocalStore
from dagster_delta.storage.locations import (
    check_relative_path,
    holds_password,
    local_root,
    scheme_of,
)
from dagster_delta.storage.memory_store import MemoryStore

NAMES = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=20
).filter(lambda name: name not in {".", ".."})
CLOUD_ROOTS = (
    *("s3://bucket", "s3a://bucket", "gs://bucket", "az://container"),
    "abfss://container@account.dfs.core.windows.net",
)
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
RELATIVE_PATHS = PATHS.filter(lambda path: scheme_of(path) is None)


@settings(deadline=None)
@given(PATHS)
def test_a_file_uri_names_the_path_it_was_made_from(path: str) -> None:
    absolute = "/" + path
    assert local_root(Path(absolute).as_uri()) == absolute
    assert local_root(absolute) == absolute


@settings(deadline=None)
@given(RELATIVE_PATHS)
def test_a_uri_of_a_local_store_resolves_to_the_path_it_was_made_from(path: str) -> None:
    store = LocalStore("/some table/100%25")
    assert store.local_path(store.resolve_uri(path)) == store.local_path(path)
    assert store.local_path(path) == f"/some table/100%25/{path}"


@settings(deadline=None)
@given(RELATIVE_PATHS)
def test_a_uri_of_a_memory_store_resolves_to_the_object_it_was_made_from(path: str) -> None:
    store = MemoryStore()
    store.put(path, path.encode())
    assert store.read(store.resolve_uri(path)) == path.encode()
    assert [meta.path for meta in store.list_recursive()] == [path]


@settings(deadline=None)
@given(RELATIVE_PATHS, st.sampled_from(CLOUD_ROOTS))
def test_a_uri_of_a_cloud_store_resolves_to_the_key_it_was_made_from(path: str, root: str) -> None:
    account = {"account_name": "account"} if root.startswith("az") else {}
    store = CloudStore(f"{root}/a/table", {"skip_signature": True, **account})
    assert store.resolve_uri(path).startswith(f"{root}/a/table/")
    assert store._resolve_path(store.resolve_uri(path)) == store._resolve_path(path)


@settings(deadline=None)
@given(st.lists(NAMES, max_size=3), st.lists(NAMES, max_size=3))
def test_a_path_that_climbs_is_refused_wherever_it_climbs(
    before: list[str], after: list[str]
) -> None:
    with pytest.raises(InvalidArgument, match=r"climb|root of the table"):
        check_relative_path("/".join([*before, "..", *after]))


@pytest.mark.parametrize(
    ("location", "root"),
    [
        ("/data/a%20b", "/data/a%20b"),
        ("/data/table/", "/data/table"),
        ("/data/x/../table", "/data/table"),
        ("file:/data/a%20b", "/data/a b"),
        ("file:///data/a%20b/", "/data/a b"),
        ("FILE:///data/%C3%BC%23", "/data/ü#"),
        ("file://localhost/data/t", "/data/t"),
        ("file:///data/100%2525", "/data/100%25"),
        ("a:b/c", f"{Path.cwd()}/a:b/c"),
    ],
)
def test_a_local_location_is_read_as_its_form_says(location: str, root: str) -> None:
    store = open_store(location)
    assert isinstance(store, LocalStore)
    assert store.location.uri == root


@pytest.mark.parametrize(
    "location",
    [
        *("s3//lake", "S3A//lake/t", "gs:lake", "abfss:lake@account/x", "hdfs;//host/t", "az:"),
        *(" s3://lake", '"s3://lake"', "'gs://lake", "s3:\\\\lake", "file:lake", "://lake"),
        *("{root}://lake", "3s://lake", "memory:t"),
    ],
)
def test_a_path_that_was_meant_as_a_uri_is_refused(location: str) -> None:
    for use in (open_store, lambda uri: DeltaIOManager(root_uri=uri)):
        with pytest.raises(InvalidArgument, match="is not a URI"):
            use(location)


def test_a_secret_in_a_misspelled_uri_is_not_shown() -> None:
    with pytest.raises(InvalidArgument) as caught:
        open_store(" s3://user:hunter2@bucket/t")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "location",
    [
        *("./s3//lake", "/s3//lake", "~/gs:lake", "a//b", "data:2024/t", "s3/lake", "gs"),
        *("2024-01-01T10:00/t", "day=2024-01-01 10:00:00//t", "C:/lake", "c:\\lake", "a/s3://b"),
        *("azores:x", "files:x", "s3_old//t", "lake:v2//t", "/data//t", "../hdfs:x", "./ s3://x"),
    ],
)
def test_a_local_path_with_colons_and_slashes_stays_one(location: str) -> None:
    assert isinstance(open_store(location), LocalStore)


def test_every_scheme_of_a_cloud_is_known_where_it_is_misspelled() -> None:
    for scheme in (*CLOUDS, "memory", "hdfs", "file"):
        with pytest.raises(InvalidArgument, match="is not a URI"):
            open_store(f"{scheme}:lake")


def test_a_relative_path_and_a_tilde_are_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/of/nobody")
    assert open_store("a/b").location.uri == os.path.join(os.getcwd(), "a/b")
    assert open_store("~/a").location.uri == "/home/of/nobody/a"
    assert open_store(Path("a")).location.uri == os.path.join(os.getcwd(), "a")


def test_a_file_uri_of_another_host_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="fileserver"):
        open_store("file://fileserver/share/table")


@pytest.mark.parametrize(
    "location", ["s3://", "s3:///key", "gs://", "az:///key", "memory://", "memory:/"]
)
def test_a_uri_without_its_bucket_or_name_is_refused(location: str) -> None:
    with pytest.raises(InvalidArgument):
        open_store(location)


def test_a_protocol_that_nobody_knows_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="nosuchprotocol"):
        open_store("nosuchprotocol://x/y")


def test_a_protocol_whose_package_is_missing_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import fsspec

    def missing(*_: object, **__: object) -> None:
        raise ImportError("Please install sftpfs")

    monkeypatch.setattr(fsspec, "filesystem", missing)
    with pytest.raises(StorageFailure, match="install sftpfs"):
        open_store("sftp://host/table")


@pytest.mark.parametrize(
    ("location", "extra"),
    [
        ("s3://bucket/table", "s3"),
        ("gs://bucket/table", "gcs"),
        ("abfss://container@account.dfs.core.windows.net/table", "azure"),
    ],
)
def test_a_cloud_whose_client_is_missing_says_what_to_install(
    location: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("store", "listing", "requests"):
        monkeypatch.delitem(sys.modules, f"dagster_delta.storage.cloud.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.exceptions", None)
    with pytest.raises(StorageFailure, match=rf"dagster-delta-protocol\[{extra}\]"):
        open_store(location)


@pytest.mark.parametrize("location", ["ftp://me:hush@host/t", "s3://me:hush@bucket/t"])
def test_a_password_in_a_location_is_refused_without_being_told(location: str) -> None:
    with pytest.raises(InvalidArgument, match="holds a password") as caught:
        open_store(location)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "location", ["/a:b@c/t", "sftp://me@host:22/t", "abfss://box@account.dfs.core/a:b@c"]
)
def test_what_is_no_password_is_none(location: str) -> None:
    assert not holds_password(location)
