"""Storage options in the names of Hadoop's file systems."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

from dagster_delta.engines.spark.read.sources import hadoop_settings, settings_of_read
from dagster_delta.storage.object_store import StoreLocation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAKE = "abfss://box@lake.dfs.core.windows.net/t"
LAKE_HOST = "lake.dfs.core.windows.net"


def _vend() -> Mapping[str, object]:
    return {"access_key_id": "VK", "secret_access_key": "VS", "session_token": "VT"}


@pytest.mark.parametrize(
    ("uri", "options", "settings"),
    [
        ("/data/t", {"access_key_id": "a"}, {}),
        (
            "s3://b/t",
            {
                "access_key_id": "AK",
                "secret_access_key": "SK",
                "token": "ST",
                "region": "eu-west-1",
            },
            {
                "fs.s3a.access.key": "AK",
                "fs.s3a.secret.key": "SK",
                "fs.s3a.session.token": "ST",
                "fs.s3a.endpoint.region": "eu-west-1",
            },
        ),
        (
            "s3a://b/t",
            {"endpoint_url": "http://h:1", "skip_signature": True},
            {
                "fs.s3a.endpoint": "http://h:1",
                "fs.s3a.path.style.access": "true",
                "fs.s3a.aws.credentials.provider": (
                    "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
                ),
            },
        ),
        ("s3://b/t", {}, {}),
        ("s3://b/t", {"credential_provider": _vend}, None),
        ("s3://b/t", {"profile": "p"}, None),
        ("s3://b/t", {"access_key_id": "AK", "secret_access_key": "SK", "ca_bundle": "/c"}, None),
        (
            "gs://b/t",
            {"service_account": "/key.json", "endpoint": "http://h:1"},
            {
                "fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE",
                "fs.gs.auth.service.account.json.keyfile": "/key.json",
                "fs.gs.storage.root.url": "http://h:1",
            },
        ),
        ("gs://b/t", {"skip_signature": "true"}, {"fs.gs.auth.type": "UNAUTHENTICATED"}),
        ("gs://b/t", {}, {}),
        ("gs://b/t", {"credential_provider": _vend}, None),
        ("gs://b/t", {"bearer_token": "T"}, None),
        ("gs://b/t", {"service_account_key": "{}"}, None),
        (
            LAKE,
            {"account_key": "AK"},
            {
                f"fs.azure.account.auth.type.{LAKE_HOST}": "SharedKey",
                f"fs.azure.account.key.{LAKE_HOST}": "AK",
            },
        ),
        (
            LAKE,
            {"sas_token": "?sig=S"},
            {
                f"fs.azure.account.auth.type.{LAKE_HOST}": "SAS",
                f"fs.azure.sas.fixed.token.{LAKE_HOST}": "sig=S",
            },
        ),
        (
            LAKE,
            {"client_id": "CI", "client_secret": "CS", "tenant_id": "TI"},
            {
                f"fs.azure.account.auth.type.{LAKE_HOST}": "OAuth",
                f"fs.azure.account.oauth.provider.type.{LAKE_HOST}": (
                    "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider"
                ),
                f"fs.azure.account.oauth2.client.id.{LAKE_HOST}": "CI",
                f"fs.azure.account.oauth2.client.secret.{LAKE_HOST}": "CS",
                f"fs.azure.account.oauth2.client.endpoint.{LAKE_HOST}": (
                    "https://login.microsoftonline.com/TI/oauth2/token"
                ),
            },
        ),
        (LAKE, {}, {}),
        (LAKE, {"credential_provider": _vend}, None),
        (LAKE, {"token": "T"}, None),
        (LAKE, {"use_azure_cli": "true"}, None),
        (LAKE, {"account_key": "AK", "endpoint": "http://h:1/lake"}, None),
        ("az://box/t", {"account_key": "AK"}, None),
    ],
)
def test_storage_options_become_settings_of_hadoop(
    uri: str, options: dict[str, Any], settings: dict[str, str] | None
) -> None:
    assert hadoop_settings(StoreLocation(uri, options)) == settings


@pytest.mark.parametrize(
    ("uri", "name"),
    [("s3://b/t", "fs.s3a.retry.throttle.limit"), (LAKE, "fs.azure.io.retry.max.retries")],
)
@pytest.mark.parametrize("prefix", ["", "spark.hadoop."])
def test_retries_are_bounded_where_the_session_does_not_say_how_many(
    spark: SparkSession, uri: str, name: str, prefix: str
) -> None:
    location = StoreLocation(uri, {})
    assert int(settings_of_read(spark, location)[name]) <= 5
    spark.conf.set(f"{prefix}{name}", "9")
    try:
        assert name not in settings_of_read(spark, location)
    finally:
        spark.conf.unset(f"{prefix}{name}")


def test_a_read_outside_of_the_clouds_has_no_settings_of_hadoop(spark: SparkSession) -> None:
    assert settings_of_read(spark, StoreLocation("/data/t", {})) == {}
