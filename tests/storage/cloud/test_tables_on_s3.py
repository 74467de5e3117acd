"""A table on S3, from the first commit to writers that race, against a real server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_delta.errors import ConditionalPutUnsupported, StorageFailure
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.read.watch import read_new_commits, start_cursor
from tests.storage.conftest import make_s3_bucket, s3_client
from tests.storage.emulators import gofakes3
from tests.storage.failing_endpoint import FailingEndpoint
from tests.table_rows import stored_tuples

ROWS = pa.table({"part": ["a b", "c%20/d", "é"], "id": [1, 2, 3]})


@pytest.fixture
def uri(s3_bucket: str) -> str:
    return f"s3://{s3_bucket}/some/table"


def test_what_is_written_is_read_by_another_handle(uri: str, s3_options: dict[str, str]) -> None:
    table = DeltaTable.create(uri, ROWS.schema, partition_by=["part"], storage_options=s3_options)
    assert table.append(ROWS).version == 1
    assert table.overwrite(ROWS.slice(0, 1), where="dynamic").version == 2
    table.checkpoint()
    again = DeltaTable(uri, storage_options=s3_options)
    assert again.version() == 2
    assert stored_tuples(again, "part", "id") == [("a b", 1), ("c%20/d", 2), ("é", 3)]
    assert DeltaTable.is_delta_table(uri, storage_options=s3_options)
    assert not DeltaTable.is_delta_table(f"{uri}/nowhere", storage_options=s3_options)


def test_writers_that_race_lose_nothing(uri: str, s3_options: dict[str, str]) -> None:
    DeltaTable.create(uri, ROWS.schema, storage_options=s3_options)

    def append(writer: int) -> None:
        # A session token of its own: every writer has its own connection.
        table = DeltaTable(uri, storage_options={**s3_options, "token": f"writer-{writer}"})
        for number in range(3):
            table.append(pa.table({"part": ["x"], "id": [writer * 10 + number]}))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(append, range(4)))
    table = DeltaTable(uri, storage_options=s3_options)
    assert table.version() == 12
    assert [row[1] for row in stored_tuples(table, "part", "id")] == sorted(
        writer * 10 + number for writer in range(4) for number in range(3)
    )


def test_a_table_is_not_written_where_puts_overwrite_in_silence(
    uri: str, s3_options: dict[str, str], options: dict[str, str], endpoint: FailingEndpoint
) -> None:
    DeltaTable.create(uri, ROWS.schema, storage_options=s3_options).append(ROWS)
    table = DeltaTable(uri, storage_options=options)
    with (
        endpoint.failing("PUT", "", "unconditional"),
        pytest.raises(ConditionalPutUnsupported),
    ):
        table.append(ROWS)
    assert table.refresh().version == 1
    assert table.snapshot().num_records == 3


def test_a_server_that_ignores_conditions_is_found_out_before_the_first_commit() -> None:
    with gofakes3() as options:
        bucket = make_s3_bucket(options)
        uri = f"s3://{bucket}/some/table"
        with pytest.raises(ConditionalPutUnsupported, match="overwrites"):
            DeltaTable.create(uri, ROWS.schema, storage_options=options)
        assert "Contents" not in s3_client(options).list_objects(Bucket=bucket)
        # A table that another program has written is read-only.
        trusting = {**options, "conditional_put": "etag"}
        DeltaTable.create(uri, ROWS.schema, storage_options=trusting).append(ROWS)
        table = DeltaTable(uri, storage_options=options)
        with pytest.raises(ConditionalPutUnsupported, match="read-only"):
            table.append(ROWS)
        assert table.refresh().version == 1
        assert table.snapshot().num_records == 3
        with pytest.raises(StorageFailure, match="ignores ranges"):
            table.snapshot().scan().to_arrow()


def test_a_clone_on_s3_refers_to_files_there_or_copies_them(
    uri: str, s3_bucket: str, s3_options: dict[str, str], tmp_path: Path
) -> None:
    properties = {"delta.enableDeletionVectors": "true"}
    table = DeltaTable.create(
        uri, ROWS.schema, partition_by=["part"], properties=properties, storage_options=s3_options
    )
    table.append(ROWS)
    table.append(ROWS)
    table.delete("id = 2")
    expected = stored_tuples(table, "part", "id")
    for deep in (False, True):
        target = f"s3://{s3_bucket}/clones/{deep}"
        assert table.clone(target, deep=deep).version == 0
        assert table.clone(target, deep=deep, replace=True).skipped
        made = DeltaTable(target, storage_options=s3_options)
        assert stored_tuples(made, "part", "id") == expected
        made.update({"id": "id + 10"}, "id = 1")
        assert [row[1] for row in stored_tuples(made, "part", "id")] == [11, 11, 3, 3]
    assert table.clone(tmp_path, deep=True, storage_options={}).version == 0
    assert (
        stored_tuples(DeltaTable(tmp_path), "part", "id")
        == stored_tuples(table, "part", "id")
        == expected
    )


def test_a_tick_of_an_idle_table_takes_one_request(
    uri: str, options: dict[str, str], endpoint: FailingEndpoint
) -> None:
    table = DeltaTable.create(uri, ROWS.schema, storage_options=options)
    table.append(ROWS)
    cursor = start_cursor(table.store)
    endpoint.seen = []
    assert read_new_commits(table.store, cursor) == (cursor, ())
    assert len(endpoint.seen) == 1
    table.append(ROWS)
    later, commits = read_new_commits(table.store, cursor)
    assert (later.version, len(commits)) == (2, 1)
