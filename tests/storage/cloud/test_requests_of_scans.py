"""Which requests a scan of a table in the cloud makes."""

from __future__ import annotations

import random
import threading

import pyarrow as pa
import pytest

from dagster_delta.errors import DataFileMissing, InvalidTable
from dagster_delta.parquet import data_file_reader, reader
from dagster_delta.protocol.actions import AddFile
from dagster_delta.storage.cloud.store import CloudStore
from dagster_delta.storage.object_store import FetchBudget, RangeStore
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.log import reader as log_reader
from tests.storage.conftest import Cloud, cloud_store
from tests.storage.failing_endpoint import FailingEndpoint

COUNT = 60_000
NAMES = ["a", "b", "c", "d", "e"]


@pytest.fixture
def uri(s3_bucket: str) -> str:
    return f"s3://{s3_bucket}/some/table"


def _rows(count: int) -> pa.Table:
    values = random.Random(1)
    columns = {name: [values.random() for _ in range(count)] for name in NAMES}
    return pa.table(columns)


def _written(uri: str, options: dict[str, str], rows: pa.Table) -> DeltaTable:
    table = DeltaTable(uri, storage_options=options, must_exist=False)
    table.append(rows)
    table.snapshot().live_files()
    return table


def _data_requests(endpoint: FailingEndpoint) -> list[str]:
    return [method for method, path in endpoint.seen if path.endswith(".parquet")]


def test_a_small_file_is_one_request(
    uri: str, options: dict[str, str], endpoint: FailingEndpoint
) -> None:
    rows = _rows(20_000)
    table = _written(uri, options, rows)
    assert 64 * 1024 < table.snapshot().size_bytes < 1024 * 1024
    endpoint.seen = []
    assert table.snapshot().scan(["b", "d"]).to_arrow() == rows.select(["b", "d"])
    assert _data_requests(endpoint) == ["GET"]


def test_columns_of_a_large_file_are_fetched_after_its_end(
    uri: str, options: dict[str, str], endpoint: FailingEndpoint
) -> None:
    rows = _rows(COUNT)
    table = _written(uri, options, rows)
    assert table.snapshot().size_bytes > 1024 * 1024
    for columns, requests in ((["b", "d"], 3), (["b", "c"], 2), (NAMES, 2)):
        endpoint.seen = []
        assert table.snapshot().scan(columns).to_arrow() == rows.select(columns)
        assert _data_requests(endpoint) == ["GET"] * requests


def test_files_are_opened_while_others_are(
    uri: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = _rows(COUNT)
    table = _written(uri, options, rows)
    table.append(rows)
    # An open file is returned only when another one is being opened.
    together = threading.Barrier(2, timeout=60)
    open_input = CloudStore.open_input

    def opened(store: CloudStore, path: str, size_bytes: int | None = None) -> pa.NativeFile:
        together.wait()
        return open_input(store, path, size_bytes)

    monkeypatch.setattr(CloudStore, "open_input", opened)
    monkeypatch.setattr(reader, "_REMOTE_THREADS", 1)
    assert table.snapshot().scan(["b"]).to_arrow().num_rows == 2 * COUNT


@pytest.mark.parametrize("cloud", ["azure"], indirect=True)
def test_a_cloud_that_knows_no_end_is_asked_for_the_size_in_the_log(cloud: Cloud) -> None:
    rows = _rows(COUNT)
    table = _written(f"{cloud.uri}/t", cloud.failing, rows)
    cloud.endpoint.seen = []
    assert table.snapshot().scan().to_arrow() == rows
    assert _data_requests(cloud.endpoint) == ["GET"] * 2
    path = table.snapshot().live_files(["path"])["path"][0].as_py()
    data = table.store.read(path)
    store = cloud_store(f"{cloud.uri}/t", cloud.failing)
    for size in (0, 1, 100_000, len(data) - 1, len(data) + 1, 2 * len(data)):
        with store.open_input(path, size) as stream:
            assert stream.size() == len(data)
            assert stream.read_at(10, len(data) - 10) == data[-10:]


def test_what_does_not_fit_into_memory_is_read_in_pieces(
    uri: str,
    options: dict[str, str],
    endpoint: FailingEndpoint,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = _rows(COUNT)
    table = _written(uri, options, rows)

    class Spent(FetchBudget):
        def take(self, size_bytes: int) -> bool:  # noqa: ARG002
            return False

    monkeypatch.setattr(data_file_reader, "FetchBudget", Spent)
    endpoint.seen = []
    assert table.snapshot().scan(["b", "d"]).to_arrow() == rows.select(["b", "d"])
    assert set(_data_requests(endpoint)) == {"GET"}


def test_columns_of_a_large_checkpoint_are_fetched_at_once(
    uri: str,
    options: dict[str, str],
    endpoint: FailingEndpoint,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = DeltaTable.create(
        uri,
        pa.schema({"p": pa.int64(), "id": pa.int64()}),
        partition_by=["p"],
        storage_options=options,
    )
    source = random.Random(1)
    adds = [
        AddFile(
            path=f"p={number}/{source.randbytes(40).hex()}.parquet",
            partition_values={"p": str(number)},
            size_bytes=1,
            modification_time_ms=1,
            data_change=True,
            stats='{"numRecords":1,"tags":"' + source.randbytes(40).hex() + '"}',
        )
        for number in range(3000)
    ]
    transaction = table.transaction()
    transaction.stage_readded(adds)
    transaction.commit("WRITE")
    table.refresh()
    table.checkpoint()
    monkeypatch.setattr(log_reader, "_DOWNLOAD_BYTES", 0)
    again = DeltaTable(uri, storage_options=options).snapshot()
    endpoint.seen = []
    paths = again.live_files(["path"])["path"]
    assert sorted(paths.to_pylist()) == sorted(each.path for each in adds)
    opening = len(_data_requests(endpoint))
    endpoint.seen = []
    found = again.live_files(["path", "partition_values", "size_bytes"])
    assert found.num_rows == 3000
    # Two columns beside each other, of a file that is known.
    assert (opening, len(_data_requests(endpoint))) == (3, 1)


def test_a_size_in_the_log_that_is_too_small_cuts_no_file(
    uri: str, options: dict[str, str]
) -> None:
    rows = _rows(COUNT)
    table = _written(uri, options, rows)
    commit = "_delta_log/00000000000000000000.json"
    size = table.snapshot().size_bytes
    data = table.store.read(commit).replace(f'"size":{size}'.encode(), b'"size":1000')
    table.store.put(commit, data.replace(b'"contentCrc32"', b'"note"'))
    table.store.delete(["_delta_log/00000000000000000000.crc"])
    again = DeltaTable(uri, storage_options=options).snapshot()
    assert again.size_bytes == 1000
    assert again.scan().to_arrow() == rows


@pytest.mark.parametrize("count", [20_000, COUNT])
def test_a_file_that_is_cut_or_missing_is_named(
    uri: str, options: dict[str, str], count: int
) -> None:
    table = _written(uri, options, _rows(count))
    path = table.snapshot().live_files(["path"])["path"][0].as_py()
    data = table.store.read(path)
    table.store.put(path, data[: len(data) // 2])
    with pytest.raises(InvalidTable, match="cut or damaged"):
        table.snapshot().scan().to_arrow()
    # With its footer, so that only the columns are missing.
    table.store.put(path, data[:1000] + data[-2000:])
    with pytest.raises(InvalidTable, match="cut or damaged"):
        table.snapshot().scan().to_arrow()
    table.store.delete([path])
    with pytest.raises(DataFileMissing):
        table.snapshot().scan().to_arrow()


def test_the_store_of_a_cloud_fetches_ranges_together(uri: str, options: dict[str, str]) -> None:
    store = DeltaTable(uri, storage_options=options, must_exist=False).store
    assert isinstance(store, RangeStore)


def test_a_budget_is_exceeded_by_one_fetch_at_most() -> None:
    budget = FetchBudget(100)
    assert budget.take(1000)
    assert not budget.take(1)
    budget.give_back(1000)
    assert budget.take(60)
    assert budget.take(40)
    assert not budget.take(1)
