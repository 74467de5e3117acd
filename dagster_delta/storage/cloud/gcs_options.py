"""The storage options of a table on Google Cloud Storage, in the names of all integrations.

| Setting | Names, in any case, with or without `google_` | gcsfs names |
|---|---|---|
| service account, path of its key file | `service_account`, `service_account_path` | `token` |
| service account key, as JSON | `service_account_key` | `token` (a mapping) |
| credentials file of any kind | `application_credentials` | `token` |
| OAuth token | `bearer_token` | |
| no signature | `skip_signature` | `anon`, or `token`: `anon` |
| endpoint, if not Google's | `base_url`, `endpoint` | `endpoint_url` |
| conditional put | `conditional_put`: `etag` or `disabled` | |
| vended credentials ¹ | `credential_provider` | |

¹ See `options`; it returns `token` and `expires_at`.

Without credentials among the options the application default ones are used: the file that
`GOOGLE_APPLICATION_CREDENTIALS` names, the login of `gcloud`, the service account of the machine or
of the Kubernetes workload. Files of other kinds than a service account's or a user's (workload
identity federation, impersonation) are read by `google-auth`.
"""

from __future__ import annotations

import functools
import json
import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from dagster_delta.errors import InvalidArgument, StorageFailure
from dagster_delta.storage.cloud.client import (
    Bucket,
    CloudClient,
    Provider,
    client_options,
    environment,
    import_client,
    retry_options,
)
from dagster_delta.storage.cloud.options import (
    CredentialProvider,
    expiry_of,
    parse_options,
    parse_text,
)
from dagster_delta.storage.cloud.requests import BrokenAnswer

_NAMES = {
    "service_account": "key_file",
    "service_account_path": "key_file",
    "application_credentials": "key_file",
    "service_account_key": "key",
    "token": "token",
    "bearer_token": "bearer_token",
    "skip_signature": "anonymous",
    "anon": "anonymous",
    "base_url": "endpoint",
    "endpoint": "endpoint",
    "endpoint_url": "endpoint",
    "conditional_put": "conditional_put",
    "credential_provider": "credential_provider",
}
# What gcsfs takes as a token besides a file: the identity of the environment.
_DEFAULT_TOKENS = frozenset({"google_default", "cloud", "cache"})
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"


@dataclass(frozen=True, slots=True)
class GcsSettings:
    """How to reach the storage and with which identity. None: the environment decides."""

    key_file: str | None = None
    """Path of a credentials file."""
    key: str | None = field(default=None, repr=False)
    """Contents of a credentials file, JSON."""
    bearer_token: str | None = field(default=None, repr=False)
    endpoint: str | None = field(default=None, repr=False)
    anonymous: bool = False
    conditional_put: str | None = None
    credential_provider: CredentialProvider | None = field(default=None, repr=False)

    def connect(self, bucket: Bucket) -> CloudClient:
        """A new client of a bucket."""
        stores = import_client("gcs")
        arguments = self._identity()
        endpoint = self.endpoint or environment("GOOGLE_BASE_URL")
        if endpoint is not None:
            arguments["base_url"] = endpoint
        try:
            store = stores.GCSStore(
                bucket.name,
                client_options=client_options(endpoint),
                retry_config=retry_options(),
                **arguments,
            )
        except (ValueError, stores.BaseError) as error:
            raise InvalidArgument(
                "The options of Google Cloud Storage make no sense "
                f"({type(error).__name__}); check the credentials file and the endpoint"
            ) from None
        check = functools.partial(_is_at_end, store)
        return CloudClient(store, is_trusted=endpoint is None, confirm_listing=check)

    def _identity(self) -> dict[str, Any]:
        if self.anonymous:
            return {"skip_signature": True}
        if self.credential_provider is not None:
            provider = functools.partial(_vended, self.credential_provider)
            return {"credential_provider": Provider(provider)}
        if self.bearer_token is not None:
            return {"bearer_token": self.bearer_token}
        key = self.key
        path = self.key_file or os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
        if key is None and path:
            key = _read_key(path)
        if key is None:
            return {}
        content = _parse_key(key)
        if content.get("type", "service_account") == "service_account":
            return {"service_account_key": key}
        return {"credential_provider": Provider(_google_auth(content))}


def parse_gcs_options(options: Mapping[str, object]) -> GcsSettings:
    """The settings for the options."""
    found = parse_options(options.items(), _NAMES, _PARSERS, prefixes=("google_",))
    token = found.pop("token", None)
    if token == "anon":  # noqa: S105 - no secret
        found["anonymous"] = True
    elif token is not None and token not in _DEFAULT_TOKENS:
        found["key" if token.lstrip().startswith("{") else "key_file"] = token
    return GcsSettings(**found)


def _json_or_text(value: object, option: str) -> str:
    if isinstance(value, Mapping):
        return json.dumps(dict(value), sort_keys=True)
    return parse_text(value, option)


def _key_text(value: object, option: str) -> str:
    text = _json_or_text(value, option)
    _parse_key(text)
    return text


_PARSERS = {"token": _json_or_text, "key": _key_text}


def _parse_key(text: str) -> dict[str, Any]:
    try:
        key = json.loads(text)
    except ValueError:
        key = None
    # Outside the handler: the parser's error contains the whole text.
    if not isinstance(key, dict):
        raise InvalidArgument(
            "service_account_key is not the JSON of a key: pass the content of the key file, or "
            "its path as service_account"
        )
    return key


def _read_key(path: str) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(
            f"The credentials file {path!r} cannot be read ({type(error).__name__})"
        ) from None


def _vended(provider: CredentialProvider) -> Mapping[str, object]:
    answer = provider()
    return {"token": answer["token"], "expires_at": expiry_of(answer)}


def _is_at_end(store: Any, prefix: str, after: str) -> bool:  # noqa: ANN401
    """Whether no key with the prefix comes after another, and the storage itself answers."""
    import obstore

    # The client takes a web page for an empty listing, but not for the answer that there is no
    # such object.
    with suppress(FileNotFoundError):
        obstore.head(store, f"{prefix}.{secrets.token_hex(8)}")
        raise BrokenAnswer(BrokenAnswer.FOREIGN)
    last = after.rstrip("/")
    pages = obstore.list(store, prefix.rstrip("/") or None, offset=last or None)
    # Some services ignore the offset.
    return not any(found["path"] > last for page in pages for found in page)


def _google_auth(content: dict[str, Any]) -> CredentialProvider:
    """Asks `google-auth` for tokens of credentials that the client itself does not know."""
    try:
        import google.auth
        from obstore.auth.google import GoogleCredentialProvider
    except ImportError as error:
        raise StorageFailure(
            f"Credentials of type {content.get('type')!r} are read by google-auth: pip install "
            "'google-auth[requests]'"
        ) from error
    load: Callable[..., Any] = google.auth.load_credentials_from_dict
    return cast("CredentialProvider", GoogleCredentialProvider(load(content, scopes=[_SCOPE])[0]))
