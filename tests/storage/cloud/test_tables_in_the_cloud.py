"""Tables on Google Cloud Storage and Azure, written and read by assets, against emulators."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from dagster_delta import DeltaIOManager, DeltaTable
from dagster_delta.errors import StorageFailure
from dagster_delta.orchestration.storage_options import (
    AzureStorageOptions,
    GcsStorageOptions,
    StorageOptions,
)
from tests.storage.emulators import AZURITE_KEY

ROWS = pa.table({"part": ["a b", "c%20/d", "é"], "id": [1, 2, 3]})
Lake = tuple[str, StorageOptions]


@pytest.fixture(params=["google", "azure", "azure, by account"])
def lake(request: pytest.FixtureRequest) -> Lake:
    """A root for tables, and the options that reach it."""
    if request.param == "google":
        options: Any = GcsStorageOptions(**request.getfixturevalue("gcs_options"))
        return f"gs://{request.getfixturevalue('gcs_bucket')}/lake", options
    options = AzureStorageOptions(**request.getfixturevalue("azure_options"))
    container = request.getfixturevalue("azure_container")
    if request.param == "azure":
        return f"az://{container}/lake", options
    return f"abfss://{container}@devstoreaccount1.dfs.core.windows.net/lake", options


def test_assets_write_and_read(lake: Lake) -> None:
    root, options = lake

    @dg.asset(metadata={"partition_by": ["part"]})
    def events() -> pa.Table:
        return ROWS

    @dg.asset
    def ids(events: pa.Table) -> pa.Table:
        return events.select(["id"])

    manager = DeltaIOManager(root_uri=root, storage_options=options)
    for _ in range(2):
        assert dg.materialize([events, ids], resources={"io_manager": manager}).success
    plain = options.to_options()
    table = DeltaTable(f"{root}/public/ids", storage_options=plain)
    assert sorted(table.snapshot().scan().to_arrow()["id"].to_pylist()) == [1, 2, 3]
    events_table = DeltaTable(f"{root}/public/events", storage_options=plain)
    events_table.delete("id = 2")
    events_table.checkpoint()
    again = DeltaTable(f"{root}/public/events", storage_options=plain)
    assert sorted(again.snapshot().scan().to_arrow()["id"].to_pylist()) == [1, 3]
    assert again.vacuum(0, enforce_retention=False, dry_run=False).num_files >= 1
    assert again.snapshot().scan().to_arrow().num_rows == 2


def test_writers_that_race_lose_nothing(lake: Lake) -> None:
    uri, options = f"{lake[0]}/t", lake[1].to_options()
    DeltaTable.create(uri, ROWS.schema, storage_options=options)

    def append(writer: int) -> None:
        table = DeltaTable(uri, storage_options=options)
        for number in range(3):
            table.append(pa.table({"part": ["x"], "id": [writer * 10 + number]}))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(append, range(4)))
    table = DeltaTable(uri, storage_options=options)
    assert table.version() == 12
    assert sorted(table.snapshot().scan().to_arrow()["id"].to_pylist()) == sorted(
        writer * 10 + number for writer in range(4) for number in range(3)
    )


def test_a_large_file_is_uploaded_in_parts(
    azure_container: str, azure_options: dict[str, str]
) -> None:
    table = DeltaTable(f"az://{azure_container}/t", storage_options=azure_options, must_exist=False)
    content = bytes(range(250)) * 100_000
    with table.store.open_output("large") as stream:
        for start in range(0, len(content), 1_000_000):
            stream.write(content[start : start + 1_000_000])
    assert table.store.read("large") == content
    opened = table.store.open_input("large")
    assert opened.size() == len(content)
    assert opened.read_at(10, len(content) - 20) == content[-20:-10]


def _vend_key() -> Mapping[str, object]:
    expires_at = datetime.now(UTC) + timedelta(hours=1)
    return {"account_key": AZURITE_KEY, "expires_at": expires_at}


def test_every_way_to_name_the_key_reaches_the_account(
    azure_container: str, azure_options: dict[str, str]
) -> None:
    endpoint, account = azure_options["endpoint"], "devstoreaccount1"
    connection = f"AccountName={account};AccountKey={AZURITE_KEY};BlobEndpoint={endpoint};"
    place = {"account_name": account, "endpoint": endpoint}
    ways: list[dict[str, Any]] = [
        {"connection_string": connection},
        {f"AZURE_STORAGE_{name.upper()}": value for name, value in azure_options.items()},
        {**place, "credential_provider": _vend_key},
        {**place, "credential_provider": f"{__name__}:_vend_key"},
    ]
    for number, way in enumerate(ways):
        table = DeltaTable(
            f"az://{azure_container}/{number}", storage_options=way, must_exist=False
        )
        table.append(ROWS)
        assert table.snapshot().num_records == 3
    with pytest.raises(StorageFailure, match="403") as caught:
        DeltaTable(
            f"az://{azure_container}/0",
            storage_options={**place, "sas_token": "?sv=2021-08-06&sig=c2VjcmV0"},
        )
    assert "c2VjcmV0" not in str(caught.value)
