"""A branch in another bucket: production's bucket is only read until the branch is published."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dagster_delta.errors import StorageFailure
from dagster_delta.table.branches.branch import Branch, find_branches
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.read.branch_tables import branches_of_table
from tests.storage.conftest import make_s3_bucket, s3_client
from tests.storage.failing_endpoint import FailingEndpoint


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids})


def stored_ids(table: DeltaTable) -> list[int]:
    return sorted(table.refresh().scan().to_arrow()["id"].to_pylist())


def objects(options: dict[str, str], bucket: str) -> list[str]:
    found = s3_client(options).list_objects_v2(Bucket=bucket)
    return sorted(found["Key"] for found in found.get("Contents", ()))


def writes(endpoint: FailingEndpoint, bucket: str) -> list[tuple[str, str]]:
    return [
        (method, path)
        for method, path in endpoint.seen
        if method not in ("GET", "HEAD") and path.startswith(f"/{bucket}")
    ]


def test_branch_in_another_bucket_writes_production_only_to_publish(
    s3_bucket: str,
    s3_options: dict[str, str],
    options: dict[str, str],
    endpoint: FailingEndpoint,
) -> None:
    other, uri = make_s3_bucket(s3_options), f"s3://{s3_bucket}/lake/raw/orders"
    production = DeltaTable(uri, storage_options=s3_options, must_exist=False)
    production.append(rows(1, 2, 3), properties={"delta.enableDeletionVectors": "true"})
    production.append(rows(4, 5))
    production.delete("id = 2")
    before = objects(s3_options, s3_bucket)
    branch = Branch(
        f"s3://{s3_bucket}/lake",
        "feature/x",
        storage_options=options,
        branch_root_uri=f"s3://{other}/branches",
    )
    assert stored_ids(branch.open(uri)) == [1, 3, 4, 5]
    table = branch.begin(uri)
    assert table is not None
    table.append(rows(6))
    table.delete("id = 4")
    assert stored_ids(table) == [1, 3, 5, 6]
    assert branch.tables() == [uri]
    assert "- 2 files with 2 rows" in branch.diff(uri).to_markdown()
    assert writes(endpoint, s3_bucket) == []
    assert objects(s3_options, s3_bucket) == before
    branch.publish()
    assert stored_ids(production) == [1, 3, 5, 6]
    found = find_branches(
        f"s3://{s3_bucket}/lake", s3_options, branch_root_uri=f"s3://{other}/branches"
    )
    assert [each.name for each in found] == ["feature/x"]
    branch.drop(dry_run=False)
    assert objects(s3_options, other) == []
    assert stored_ids(production) == [1, 3, 5, 6]
    assert production.unreferenced_files().files.num_rows == 0


def test_vacuum_runs_where_directories_above_the_table_may_not_be_listed(
    s3_bucket: str,
    s3_options: dict[str, str],
    options: dict[str, str],
    endpoint: FailingEndpoint,
) -> None:
    uri = f"s3://{s3_bucket}/lake/raw/orders"
    DeltaTable(uri, storage_options=s3_options, must_exist=False).append(rows(1))
    table = DeltaTable(uri, storage_options=options)
    with endpoint.failing("GET", "_branches", "403 AccessDenied") as asked:
        assert branches_of_table(table.store, {}) == []
        assert len(asked) >= 2
        with pytest.raises(StorageFailure):
            branches_of_table(table.store, {f"s3://{s3_bucket}/other": None})
