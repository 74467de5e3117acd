"""Spark writes and reads in the cloud with the storage options of each table, by S3A and ABFS."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.reference.jars import hadoop_class_path
from tests.sessions import java_is_there

KEPT = [n for n in range(11, 100) if n % 7 != 3]
SECRETS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "account_key")

pytestmark = [pytest.mark.spark, pytest.mark.exhaustive]


@pytest.fixture
def class_path() -> str:
    """S3A and ABFS of the version of Spark's Hadoop."""
    if not java_is_there():
        pytest.skip("Spark needs Java 17 or newer, and there is none")
    found, why = hadoop_class_path()
    if found is None:
        pytest.skip(why)
    return found


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


def _read(directory: Path, given: dict[str, Any], environment: dict[str, str]) -> list[Any]:
    """What the program has read. No output of it has a secret of the tables' options."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.storage.spark_on_hadoop", str(directory)],
        input=json.dumps(given),
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=540,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    events = [path.read_text() for path in directory.rglob("*") if path.is_file()]
    assert any("FileScan parquet" in text for text in events)
    options = [pair for table in given["tables"].values() for pair in table.items()]
    secrets = [value for name, value in options if name in SECRETS]
    assert secrets
    for text in [done.stdout, done.stderr, *events]:
        assert not any(secret in text for secret in secrets)
    return list(json.loads(done.stdout.rpartition("found: ")[2]).values())


def test_s3a_uses_the_credentials_of_each_table_and_shows_none(
    minio_bucket: str, minio_options: dict[str, str], class_path: str, tmp_path: Path
) -> None:
    uris = [f"s3://{minio_bucket}/{name}" for name in ("first", "second")]
    # Hadoop keeps the client, and so the rights, of the first.
    limited = [_limited(minio_options, minio_bucket, uri.rpartition("/")[2]) for uri in uris]
    tables = dict(zip(uris, limited, strict=True))
    given = {"class_path": class_path, "settings": {}, "tables": tables}
    first, second = _read(tmp_path, given, {})
    assert first == {"schemes": ["s3a"], "spark": KEPT, "arrow": KEPT}
    # Its executors read without Hadoop.
    assert second == {"schemes": [], "spark": KEPT, "arrow": KEPT}


def test_abfs_uses_the_credentials_of_the_table_and_shows_none(
    azure_container: str, azure_options: dict[str, str], class_path: str, tmp_path: Path
) -> None:
    endpoint = azure_options["endpoint"]
    account = azure_options["account_name"]
    # What ABFS needs to speak with an emulator, which has no hierarchical namespace.
    emulator = {
        "always.use.https": "false",
        "abfs.endpoint": urlsplit(endpoint).netloc,
        "account.hns.enabled": "false",
        "fns.account.service.type": "BLOB",
        "networking.library": "JDK_HTTP_URL_CONNECTION",
    }
    uri = f"abfs://{azure_container}@{account}.dfs.core.windows.net/t"
    given = {
        "class_path": class_path,
        "settings": {f"spark.hadoop.fs.azure.{name}": emulator[name] for name in emulator},
        "tables": {uri: {"account_key": azure_options["account_key"]}},
    }
    assert _read(tmp_path, given, {"AZURE_STORAGE_ENDPOINT": endpoint}) == [
        {"schemes": ["abfs"], "spark": KEPT, "arrow": KEPT}
    ]
