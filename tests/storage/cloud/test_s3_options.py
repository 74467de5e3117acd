"""Options of every integration mean the same, and none is ever shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from dagster_delta.errors import InvalidArgument
from dagster_delta.storage.cloud.s3 import parse_s3

WHOLE = {
    "access_key_id": "AK",
    "secret_access_key": "SK",
    "session_token": "ST",
    "region": "eu-west-1",
    "endpoint": "https://s3.example.com",
}


@pytest.mark.parametrize(
    "options",
    [
        {
            "AWS_ACCESS_KEY_ID": "AK",
            "AWS_SECRET_ACCESS_KEY": "SK",
            "AWS_SESSION_TOKEN": "ST",
            "AWS_REGION": "eu-west-1",
            "AWS_ENDPOINT_URL": "https://s3.example.com",
            "AWS_ALLOW_HTTP": "true",
            "AWS_S3_ALLOW_UNSAFE_RENAME": "true",
        },
        {
            "aws_access_key_id": "AK",
            "aws_secret_access_key": "SK",
            "aws_session_token": "ST",
            "aws_default_region": "eu-west-1",
            "aws_endpoint": "https://s3.example.com",
        },
        {
            "access_key_id": "AK",
            "secret_access_key": "SK",
            "session_token": "ST",
            "region": "eu-west-1",
            "endpoint": "https://s3.example.com",
        },
        {
            "access_key_id": "AK",
            "secret_access_key": "SK",
            "token": "ST",
            "region": "eu-west-1",
            "endpoint_url": "https://s3.example.com",
        },
    ],
    ids=["environment", "lower case", "bare", "aliases"],
)
def test_every_integration_spells_the_same_settings(options: dict[str, Any]) -> None:
    assert parse_s3(options) == WHOLE


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({}, {}),
        ({"profile": None, "AWS_REGION": ""}, {}),
        ({"skip_signature": True}, {"skip_signature": True}),
        ({"AWS_SKIP_SIGNATURE": "true"}, {"skip_signature": True}),
        ({"AWS_SKIP_SIGNATURE": "false"}, {"skip_signature": False}),
        (
            {"AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "TRUE"},
            {"virtual_hosted_style_request": True},
        ),
        ({"ca_bundle": "/ca.pem"}, {"ca_bundle": "/ca.pem"}),
        ({"AWS_CONDITIONAL_PUT": "etag"}, {"conditional_put": "etag"}),
        ({"profile": "lake"}, {"profile": "lake"}),
    ],
)
def test_an_option_means_what_the_table_says(
    options: dict[str, Any], settings: dict[str, Any]
) -> None:
    assert parse_s3(options) == settings


@pytest.mark.parametrize(
    "options",
    [
        {"secret_access_key": "s3cr3t"},
        {"AWS_ACCESS_KEY_ID": "s3cr3t"},
        {"skip_signature": "s3cr3t"},
        {"access_key_id": 7, "secret_access_key": "s3cr3t"},
        {"client_kwargs": {"verify": "s3cr3t"}},
        {"conditional_put": "s3cr3t"},
    ],
)
def test_what_is_not_valid_is_refused_without_showing_it(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_s3(options)
    assert "s3cr3t" not in str(caught.value)
    assert "s3cr3t" not in repr(caught.value.__dict__)


def test_parsed_options_do_not_show_secrets() -> None:
    shown = repr(parse_s3(WHOLE))
    assert "access_key_id" in shown
    for secret in ("AK", "SK", "ST", "example.com"):
        assert secret not in shown


@dataclass
class _Vendor:
    """As most data classes, it cannot be hashed."""

    key: str

    def __call__(self) -> dict[str, object]:
        return {"access_key_id": self.key, "secret_access_key": "s"}


def test_a_provider_may_be_any_callable() -> None:
    vendor = _Vendor("k")
    first, again, other = (
        parse_s3({"credential_provider": made}) for made in (vendor, vendor, _Vendor("l"))
    )
    assert hash(first) == hash(again)
    assert first == again
    assert first != other
    assert first["credential_provider"]() == {"access_key_id": "k", "secret_access_key": "s"}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("AWS_ACCES_KEY_ID", "did you mean 'access_key_id'"),
        ("secret_acces_key", "did you mean 'secret_access_key'"),
        ("endpont_url", "did you mean 'endpoint_url'"),
        ("aws_access_key", "did you mean 'access_key_id'"),
        ("secret_key", "did you mean 'secret_access_key'"),
        ("key", "the options are access_key_id, "),
        ("use_ssl", "the options are access_key_id, "),
        ("client_kwargs", "the options are access_key_id, "),
    ],
)
def test_an_unknown_option_is_refused_by_name_and_without_its_value(name: str, hint: str) -> None:
    with pytest.raises(InvalidArgument, match=f"no storage option '{name}'; {hint}"):
        parse_s3({name: "hidden"})
    with pytest.raises(InvalidArgument) as caught:
        parse_s3({name: "hidden"})
    assert "hidden" not in str(caught.value)


def test_options_of_delta_rs_for_what_needs_no_option_are_ignored() -> None:
    others = {
        "AWS_S3_LOCKING_PROVIDER": "dynamodb",
        "aws_copy_if_not_exists": "header",
        "AWS_ENDPOINT_URL_DYNAMODB": "https://other.example.com",
        "AWS_S3_ALLOW_UNSAFE_RENAME": "true",
        "allow_http": "true",
    }
    assert parse_s3(others) == parse_s3({})
