"""The storage options of an S3 table, in the names of all integrations.

| Setting | Names, in any case, with or without `aws_` | fsspec / s3fs names |
|---|---|---|
| access key | `access_key_id` | `key` |
| secret key | `secret_access_key` | `secret` |
| session token | `session_token` | `token` |
| AWS profile | `profile` | `profile` |
| region | `region`, `default_region`, `region_name` | `region_name` ¹ |
| endpoint, if not AWS | `endpoint_url`, `endpoint` | `endpoint_url` ¹ |
| no signature | `skip_signature` | `anon` |
| bucket in the host name | `virtual_hosted_style_request` | `config_kwargs.s3.addressing_style` |
| CA bundle ² | `ca_bundle` | `verify` ¹ |
| conditional put | `conditional_put`: `etag` or `disabled` | |
| vended credentials ³ | `credential_provider` | |

¹ also inside `client_kwargs`. ² A path of certificates to trust besides the system's; certificates
are always checked. ³ See `options`; it returns `access_key_id`, `secret_access_key`,
`session_token` and `expires_at`.

Settings without an option come from the environment and the AWS configuration files, by the rules
of the AWS SDK. An `http://` endpoint needs no `allow_http`. Options of other integrations that have
no meaning here (locking providers, copy-if-not-exists, unsafe renames) are ignored: commits are
always conditional puts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dagster_delta.errors import InvalidArgument
from dagster_delta.storage.cloud.options import (
    CredentialProvider,
    credential_provider,
    parse_bool,
    parse_conditional_put,
    parse_options,
    parse_text,
)

_NAMES = {
    "access_key_id": "access_key",
    "key": "access_key",
    "secret_access_key": "secret_key",
    "secret": "secret_key",
    "session_token": "session_token",
    "token": "session_token",
    "profile": "profile",
    "region": "region",
    "default_region": "region",
    "region_name": "region",
    "endpoint_url": "endpoint",
    "endpoint": "endpoint",
    "skip_signature": "anonymous",
    "anon": "anonymous",
    "virtual_hosted_style_request": "virtual_hosted",
    "ca_bundle": "ca_bundle",
    "verify": "ca_bundle",
    "conditional_put": "conditional_put",
    "credential_provider": "credential_provider",
}


@dataclass(frozen=True, slots=True)
class S3Settings:
    """How to reach the storage and with which identity. None: the environment decides."""

    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    profile: str | None = None
    region: str | None = None
    endpoint: str | None = field(default=None, repr=False)
    """URL of a provider other than AWS. It may hold credentials, so `repr` omits it."""
    anonymous: bool = False
    virtual_hosted: bool = False
    ca_bundle: str | None = None
    """Path of certificates to trust besides the system's."""
    conditional_put: str | None = None
    """`etag`: the provider is known to honour `If-None-Match`; `disabled`: it does not."""
    credential_provider: CredentialProvider | None = field(default=None, repr=False)


def parse_s3_options(options: Mapping[str, object]) -> S3Settings:
    """The settings for the options.

    The message of an error names the option, never its value.
    """
    found = parse_options(_flattened(options), _NAMES, _parse_value, prefixes=("aws_",))
    settings = S3Settings(**found)
    if (settings.access_key is None) != (settings.secret_key is None):
        raise InvalidArgument(
            "The storage options hold only one of access key and secret key; give both, or "
            "neither to use the credentials of the environment"
        )
    return settings


def _flattened(options: Mapping[str, object]) -> list[tuple[str, object]]:
    # The nested names come first, so that the plain ones override them.
    config = _mapping(options, "config_kwargs")
    style = _mapping(config, "s3").get("addressing_style")
    pairs = [("virtual_hosted_style_request", style == "virtual")] if style is not None else []
    pairs += _mapping(options, "client_kwargs").items()
    return pairs + list(options.items())


def _mapping(options: Mapping[str, object], name: str) -> Mapping[str, Any]:
    value = options.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidArgument(f"The storage option {name!r} is a mapping")
    return value


def _parse_value(setting: str, value: object, option: str) -> object:
    if setting in {"anonymous", "virtual_hosted"}:
        return parse_bool(value, option)
    if setting == "ca_bundle" and str(value).lower() in {"true", "false", "1", "0", "yes", "no"}:
        if not parse_bool(value, option):
            raise InvalidArgument(
                f"Certificates are always checked; give the path of a CA bundle as {option!r}"
            )
        return None
    if setting == "conditional_put":
        return parse_conditional_put(value, option)
    if setting == "credential_provider":
        return credential_provider(value, option)
    return parse_text(value, option)
