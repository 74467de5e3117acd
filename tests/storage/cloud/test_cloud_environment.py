"""Endpoints and settings that the environment and the AWS configuration files name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dagster_delta.errors import InvalidArgument
from dagster_delta.storage.cloud.client import connect
from tests.storage.conftest import cloud_store

KEYS = {"access_key_id": "k", "secret_access_key": "s", "region": "us-east-1"}
AZURE = {"account_name": "someone", "account_key": "a2V5"}


@pytest.fixture(autouse=True)
def _no_cached_clients() -> None:
    connect.cache_clear()


@pytest.mark.parametrize(
    ("variable", "uri", "options"),
    [
        ("AWS_ENDPOINT", "s3://b/t", KEYS),
        ("GOOGLE_BASE_URL", "gs://b/t", {"bearer_token": "t"}),
        ("AZURE_STORAGE_ENDPOINT", "az://c/t", AZURE),
        ("AZURE_ENDPOINT", "az://c/t", AZURE),
    ],
)
def test_a_provider_that_the_environment_names_is_probed(
    monkeypatch: pytest.MonkeyPatch, variable: str, uri: str, options: dict[str, str]
) -> None:
    assert cloud_store(uri, options)._client.is_trusted
    connect.cache_clear()
    monkeypatch.setenv(variable, "https://storage.example")
    assert not cloud_store(uri, options)._client.is_trusted


@pytest.mark.parametrize(
    "lines",
    [
        "endpoint_url = {url}\n",
        "services = minio\n[services minio]\ns3 =\n  endpoint_url = {url}\n",
    ],
)
def test_the_endpoint_of_a_profile_is_used(
    s3_bucket: str,
    s3_options: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lines: str,
) -> None:
    config = tmp_path / "config"
    config.write_text("[profile lake]\n" + lines.format(url=s3_options["AWS_ENDPOINT_URL"]))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    keys = {name: s3_options[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    store = cloud_store(f"s3://{s3_bucket}/t", {**keys, "profile": "lake"})
    store.put_if_absent("_delta_log/0.json", b"x")
    assert store.read("_delta_log/0.json") == b"x"
    assert not store._client.is_trusted


def test_a_variable_for_other_clients_does_not_switch_commits_off(
    s3_bucket: str, s3_options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    store = cloud_store(f"s3://{s3_bucket}/t", s3_options)
    store.put_if_absent("_delta_log/0.json", b"x")
    with pytest.raises(FileExistsError):
        store.put_if_absent("_delta_log/0.json", b"y")


FEDERATED = {
    "type": "external_account",
    "audience": "a",
    "subject_token_type": "t",
    "token_url": "https://sts.googleapis.com/v1/token",
    "credential_source": {"file": "/nowhere"},
}


@pytest.mark.parametrize("option", ["application_credentials", "service_account"])
def test_federated_credentials_of_google_are_read_by_google_auth(
    tmp_path: Path, option: str
) -> None:
    pytest.importorskip("google.auth")
    file = tmp_path / "key.json"
    file.write_text(json.dumps(FEDERATED))
    store = cloud_store("gs://b/t", {option: str(file)})
    provider = store._client.store.credential_provider._ask
    assert type(provider.credentials).__module__ == "google.auth.identity_pool"


@pytest.mark.parametrize("identity", [{"bearer_token": "t"}, {"skip_signature": "true"}])
def test_a_key_file_of_google_that_is_not_used_is_not_read(identity: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, match="'/nowhere' cannot be read"):
        cloud_store("gs://b/t", {"service_account": "/nowhere"})
    cloud_store("gs://b/t", {"service_account": "/nowhere", **identity})


def test_a_configuration_of_aws_that_names_nothing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    config.write_text("[profile lake]\nservices = nothing\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    with pytest.raises(InvalidArgument, match="AWS configuration is not valid"):
        cloud_store("s3://b/t", {"profile": "lake"})
