"""Every store does what the port says."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dagster_delta.errors import ConditionalPutUnsupported
from dagster_delta.storage import ObjectStore, open_store
from dagster_delta.storage.fsspec_store import FsspecStore
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.testing.faulty_store import FaultyStore
from dagster_delta.testing.store_conformance import ReadConformance, StoreConformance


class TestLocalStore(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return open_store(tmp_path / "a table%20#")


class TestLocalStoreThatWaitsForTheDisk(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return open_store((tmp_path / "a table%20#").as_uri(), {"fsync": "true"})


class TestMemoryStore(StoreConformance):
    shared_between_processes = False

    @pytest.fixture
    def store(self) -> ObjectStore:
        return MemoryStore()


class TestSharedMemoryStore(StoreConformance):
    shared_between_processes = False

    @pytest.fixture
    def store(self) -> ObjectStore:
        return open_store(f"memory://{uuid.uuid4().hex}/some/table")


class TestFaultlessFaultyStore(StoreConformance):
    shared_between_processes = False

    @pytest.fixture
    def store(self) -> ObjectStore:
        return FaultyStore(MemoryStore())


class TestMinioStore(StoreConformance):
    """A server of its own, in processes and threads that race for one name."""

    processes = 8

    @pytest.fixture
    def store(self, minio_bucket: str, minio_options: dict[str, str]) -> ObjectStore:
        return open_store(f"s3://{minio_bucket}/some/table", minio_options)


class TestS3Store(StoreConformance):
    """A server in this process, which takes seconds for a thousand objects."""

    processes = 4
    long_listing = 43

    @pytest.fixture
    def store(self, s3_bucket: str, s3_options: dict[str, str], short_answers: int) -> ObjectStore:
        assert self.long_listing > short_answers
        return open_store(f"s3://{s3_bucket}/some/table", s3_options)

    @pytest.mark.exhaustive
    def test_more_objects_than_one_request_deletes_are_deleted(self, store: ObjectStore) -> None:
        names = [f"x/{number}" for number in range(1203)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: store.put(name, b"x"), names))
        store.delete(names)
        assert list(store.list_recursive()) == []


class TestS3StoreAtTheRootOfABucket(ReadConformance):
    @pytest.fixture
    def store(self, s3_bucket: str, s3_options: dict[str, str]) -> ObjectStore:
        return open_store(f"s3a://{s3_bucket}", s3_options)

    @pytest.mark.exhaustive
    def test_a_long_listing_is_complete(self, store: ObjectStore) -> None:
        super().test_a_long_listing_is_complete(store)


class TestAzureStore(StoreConformance):
    processes = 4

    @pytest.fixture
    def store(self, azure_container: str, azure_options: dict[str, str]) -> ObjectStore:
        return open_store(f"az://{azure_container}/some/table", azure_options)


class TestGoogleStore(StoreConformance):
    processes = 4
    large_bytes = 10  # the emulator has no uploads in parts

    @pytest.fixture
    def store(self, gcs_bucket: str, gcs_options: dict[str, str]) -> ObjectStore:
        return open_store(f"gs://{gcs_bucket}/some/table", gcs_options)


@pytest.mark.exhaustive
class TestHdfsStore(StoreConformance):
    processes = 8
    forbidden_characters = ":"

    @pytest.fixture
    def store(self, hdfs_root: str) -> ObjectStore:
        return open_store(hdfs_root)


class TestFsspecStore(ReadConformance):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return FsspecStore(f"memory://{uuid.uuid4().hex}/some/table")

    def fill(self, store: ObjectStore, path: str, data: bytes) -> None:
        import fsspec

        fsspec.filesystem("memory").pipe_file(store.resolve_uri(path), data)

    def reopen(self, store: ObjectStore) -> ObjectStore:
        return FsspecStore(store.location.uri, store.location.options)

    def test_writing_is_refused_by_protocol(self, store: ObjectStore) -> None:
        assert not store.supports_put_if_absent
        with pytest.raises(ConditionalPutUnsupported, match="memory://"):
            store.put_if_absent("a", b"")
        with pytest.raises(ConditionalPutUnsupported, match="memory://"):
            store.put("a", b"")
        with pytest.raises(ConditionalPutUnsupported, match="memory://"):
            store.open_output("a")
        with pytest.raises(ConditionalPutUnsupported, match="memory://"):
            store.delete(["a"])
        assert list(store.list_recursive()) == []
