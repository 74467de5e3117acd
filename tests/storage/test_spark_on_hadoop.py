"""Spark writes and reads in the cloud with the storage options of each table, by S3A and ABFS."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

import pytest

from tests.storage.emulators import AZURITE_KEY, azurite_sas
from tests.storage.spark_on_hadoop import abfs_of_azurite, spark_on_hadoop

KEPT = [n for n in range(11, 100) if n % 7 != 3]
SECRETS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "account_key")

pytestmark = [pytest.mark.spark, pytest.mark.exhaustive]


def _limited(options: dict[str, str], bucket: str, prefix: str) -> dict[str, str]:
    """Temporary credentials that give rights below one prefix of a bucket."""
    import botocore.session

    session = botocore.session.Session()
    session.set_credentials(options["AWS_ACCESS_KEY_ID"], options["AWS_SECRET_ACCESS_KEY"])
    service = session.create_client(
        "sts", region_name="us-east-1", endpoint_url=options["AWS_ENDPOINT_URL"]
    )
    objects = {
        "Effect": "Allow",
        "Action": ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"],
        "Resource": [f"arn:aws:s3:::{bucket}/{prefix}/*"],
    }
    names = {
        "Effect": "Allow",
        "Action": ["s3:ListBucket"],
        "Resource": [f"arn:aws:s3:::{bucket}"],
        "Condition": {"StringLike": {"s3:prefix": [f"{prefix}/*"]}},
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [objects, names]})
    issued = service.assume_role(
        RoleArn="arn:aws:iam::0:role/tests", RoleSessionName="tests", Policy=policy
    )
    credentials = issued["Credentials"]
    return {
        **options,
        "AWS_ACCESS_KEY_ID": credentials["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": credentials["SecretAccessKey"],
        "AWS_SESSION_TOKEN": credentials["SessionToken"],
    }


def _outcomes(
    events: Path,
    tables: dict[str, dict[str, str]],
    settings: dict[str, str] | None = None,
    **environment: str,
) -> list[Any]:
    """What a process has read from each table. Nothing it prints has a secret of their options."""
    logged = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": str(events),
        "spark.eventLog.compress": "false",
        "spark.log.level": "INFO",
    }
    with spark_on_hadoop({**logged, **(settings or {})}, environment=environment) as process:
        found = [process.run("write and read", *table) for table in tables.items()]
        printed = process.printed()
    written = [path.read_text() for path in events.rglob("*") if path.is_file()]
    assert any("FileScan parquet" in text for text in written)
    options = [pair for table in tables.values() for pair in table.items()]
    secrets = [value for name, value in options if name in SECRETS]
    secrets += [parse_qs(value)["sig"][0] for name, value in options if name == "sas_token"]
    assert secrets
    for text in [printed, *written]:
        assert not any(secret in unquote(text) for secret in secrets)
    assert not [outcome.failure for outcome in found if outcome.failure]
    return [outcome.result for outcome in found]


def test_s3a_uses_the_credentials_of_each_table_and_shows_none(
    minio_bucket: str, minio_options: dict[str, str], tmp_path: Path
) -> None:
    uris = [f"s3://{minio_bucket}/{name}" for name in ("first", "second")]
    # Hadoop keeps the client, and so the rights, of the first.
    limited = [_limited(minio_options, minio_bucket, uri.rpartition("/")[2]) for uri in uris]
    tables = dict(zip(uris, limited, strict=True))
    first, second = _outcomes(tmp_path, tables)
    assert first == {"schemes": ["s3a"], "spark": KEPT, "arrow": KEPT}
    # Its executors read without Hadoop.
    assert second == {"schemes": [], "spark": KEPT, "arrow": KEPT}


@pytest.mark.parametrize("option", ["account_key", "sas_token"])
def test_abfs_uses_the_credentials_of_the_table_and_shows_none(
    azure_container: str, azure_options: dict[str, str], tmp_path: Path, option: str
) -> None:
    endpoint = azure_options["endpoint"]
    account = azure_options["account_name"]
    uri = f"abfs://{azure_container}@{account}.dfs.core.windows.net/t"
    settings = abfs_of_azurite(endpoint)
    credential = AZURITE_KEY if option == "account_key" else azurite_sas()
    tables = {uri: {option: credential}}
    assert _outcomes(tmp_path, tables, settings, AZURE_STORAGE_ENDPOINT=endpoint) == [
        {"schemes": ["abfs"], "spark": KEPT, "arrow": KEPT}
    ]
