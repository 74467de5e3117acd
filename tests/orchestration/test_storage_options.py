"""Secrets are handed to the storage, and to nobody else."""

from __future__ import annotations

import json

import dagster as dg
import pytest
from pydantic import ValidationError

from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.resources import DeltaTableResource, SparkSessionResource
from dagster_delta.orchestration.storage_options import (
    AzureStorageOptions,
    FsspecStorageOptions,
    GcsStorageOptions,
    LocalStorageOptions,
    S3StorageOptions,
)
from dagster_delta.storage.cloud.azure import parse_azure
from dagster_delta.storage.cloud.gcs import parse_gcs
from dagster_delta.storage.cloud.s3 import parse_s3

SECRET = "hush-hush"

WITH_SECRETS = [
    S3StorageOptions(
        access_key_id=SECRET, secret_access_key=SECRET, session_token=SECRET, endpoint=SECRET
    ),
    S3StorageOptions(token=SECRET, extra={"ca_bundle": SECRET}),
    GcsStorageOptions(service_account_key=json.dumps({"key": SECRET})),
    AzureStorageOptions(
        account_key=SECRET, sas_key=SECRET, connection_string=SECRET, client_secret=SECRET
    ),
    FsspecStorageOptions(extra={"password": SECRET}),
]


@pytest.mark.parametrize("options", WITH_SECRETS, ids=lambda each: type(each).__name__)
def test_no_secret_is_shown(options):
    resource = DeltaTableResource(uri="s3://b/t", storage_options=options)
    for shown in (repr(options), str(options), repr(resource), str(resource), f"{options}"):
        assert SECRET not in shown
    assert SECRET in str(options.to_options())


def test_a_mistyped_secret_is_not_quoted_in_the_error():
    with pytest.raises(ValidationError) as caught:
        S3StorageOptions(secret_access_key=[SECRET])
    assert SECRET not in str(caught.value)


def test_a_mistyped_secret_inside_a_resource_is_not_quoted_in_the_error():
    with pytest.raises(ValidationError) as caught:
        DeltaTableResource(uri="s3://b/t", storage_options={"s3": {"secret_access_key": [SECRET]}})
    assert SECRET not in str(caught.value)


def test_secret_fields_are_marked_for_dagster():
    schema = S3StorageOptions.to_fields_dict()
    assert schema["secret_access_key"].is_secret
    assert not schema["region"].is_secret


def test_the_launchpad_masks_no_server_that_is_not_set():
    field = SparkSessionResource.to_config_schema().as_field().config_type.fields["remote"]
    assert field.is_secret
    assert not field.is_required
    assert not field.default_provided


def test_the_mask_of_the_launchpad_is_no_secret():
    with pytest.raises(InvalidArgument, match=r"secret_access_key is .*: delete the line"):
        S3StorageOptions(secret_access_key="********").to_options()
    with pytest.raises(InvalidArgument, match=r"remote is .*: delete the line"):
        _ = SparkSessionResource(remote="********").session


def test_a_secret_from_the_environment_reaches_the_storage_and_no_definition(monkeypatch):
    monkeypatch.setenv("LAKE_SECRET", SECRET)
    seen = {}

    @dg.asset
    def probe(table: DeltaTableResource) -> None:
        seen.update(table.storage_options.to_options())
        assert SECRET not in repr(table)

    resource = DeltaTableResource(
        uri="s3://b/t",
        storage_options=S3StorageOptions(
            access_key_id="id", secret_access_key=dg.EnvVar("LAKE_SECRET")
        ),
    )
    assert dg.materialize([probe], resources={"table": resource}).success
    assert seen == {"access_key_id": "id", "secret_access_key": SECRET}


def test_s3_options_are_understood_by_the_store():
    options = S3StorageOptions(
        access_key_id="a",
        secret_access_key="b",
        token="c",
        region="r",
        endpoint="http://localhost:9000",
        skip_signature=True,
        virtual_hosted_style_request=True,
        conditional_put="etag",
    )
    assert parse_s3(options.to_options()) == {
        "access_key_id": "a",
        "secret_access_key": "b",
        "session_token": "c",
        "region": "r",
        "endpoint": "http://localhost:9000",
        "skip_signature": True,
        "virtual_hosted_style_request": True,
        "conditional_put": "etag",
    }


def test_probing_for_conditional_puts_is_what_the_store_does_when_it_is_told_nothing():
    assert S3StorageOptions().to_options() == {}


def test_options_of_google_and_azure_are_understood_by_the_store():
    azure = parse_azure(AzureStorageOptions(account_name="a", sas_key="s").to_options())
    assert azure == {"account_name": "a", "sas_key": "s"}
    google = parse_gcs(GcsStorageOptions(service_account="/key.json").to_options())
    assert google == {"service_account": "/key.json"}
    google = parse_gcs(GcsStorageOptions(service_account_key='{"a": 1}').to_options())
    assert google == {"service_account_key": '{"a": 1}'}
    for made in (GcsStorageOptions(), AzureStorageOptions()):
        assert made.to_options() == {}


def test_every_option_of_a_cloud_is_understood_by_its_store():
    parsers = {
        S3StorageOptions: (
            parse_s3,
            {"endpoint": "http://h", "access_key_id": "a", "secret_access_key": "b"},
        ),
        GcsStorageOptions: (parse_gcs, {}),
        AzureStorageOptions: (parse_azure, {"tenant_id": "t", "client_id": "c"}),
    }
    without_effect = {"extra", "provider", "project", "conditional_put"}
    values = {"credential_provider": "os:getcwd", "service_account_key": "{}"}
    values["connection_string"] = "AccountName=a;AccountKey=b"
    for kind, (parse, others) in parsers.items():
        for name, field in kind.model_fields.items():
            if name in without_effect or "key_id" in name or "access_key" in name:
                continue
            value = True if "bool" in str(field.annotation) else values.get(name, "x")
            with_it = parse({**others, **kind(**{name: value}).to_options()})
            assert with_it != parse({n: v for n, v in others.items() if n != name}), name


def test_options_of_other_storage_are_passed_on():
    assert FsspecStorageOptions(extra={"host": "h"}).to_options() == {"host": "h"}
    assert LocalStorageOptions().to_options() == {}
