"""Names of buckets and accounts: a table's log may hold any, and each request has credentials."""

from __future__ import annotations

import pytest

from dagster_delta.errors import InvalidArgument, StorageFailure
from tests.storage.conftest import cloud_store

AZURE = {"bearer_token": "secret-token"}
S3 = {"region": "x", "access_key_id": "k", "secret_access_key": "s", "token": "secret-token"}
LAKE = "abfss://c@lake.dfs.core.windows.net/t"


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        (LAKE, "abfss://c@lake.dfs.attacker.example/x"),
        ("abfss://c@lake.dfs.core.chinacloudapi.cn/t", "abfss://c@lake.dfs.core.windows.net/x"),
    ],
)
def test_credentials_are_not_sent_to_a_service_that_a_log_names(uri: str, path: str) -> None:
    with pytest.raises(StorageFailure, match="another service"):
        cloud_store(uri, AZURE).read(path)


@pytest.mark.parametrize(
    "path",
    [
        "abfss://d@other.dfs.core.windows.net/x",
        "wasbs://d@other.blob.core.windows.net/x",
        "az://d/x",
        "ABFSS://d@OTHER.dfs.Core.windows.net/x",
    ],
)
def test_files_of_other_accounts_of_the_cloud_are_found(path: str) -> None:
    _, key = cloud_store(LAKE, {**AZURE, "account_name": "lake"})._resolve_path(path)
    assert key == "x"


@pytest.mark.parametrize(
    ("uri", "options", "path"),
    [
        (LAKE, AZURE, "abfss://c@2130706433#/x"),
        (LAKE, AZURE, "abfss://c@localhost?/x"),
        (LAKE, AZURE, "abfss://c@a@b/x"),
        ("s3://b/t", S3, "s3://localhost#/x"),
        ("s3://b/t", S3, "s3://localhost?/x"),
        ("s3://b/t", S3, "s3://localhost\\/x"),
    ],
)
def test_a_name_that_would_be_another_host_is_refused(
    uri: str, options: dict[str, str], path: str
) -> None:
    with pytest.raises(InvalidArgument, match="character"):
        cloud_store(uri, options).read(path)
