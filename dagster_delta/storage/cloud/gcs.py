"""Tables on Google Cloud Storage: their storage options, clients and settings of Hadoop.

Options are the fields of `GcsStorageOptions`, in any case, with or without `google_`, and their
aliases `service_account_path`, `base_url` and `endpoint_url`. A credential provider (see `options`)
returns `token` and `expires_at`.

Without credentials among the options the application default ones are used: the file that
`GOOGLE_APPLICATION_CREDENTIALS` names, the login of `gcloud`, the service account of the machine or
of the Kubernetes workload. Files of other kinds than a service account's or a user's (workload
identity federation, impersonation) are read by `google-auth`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from dagster_delta.errors import InvalidArgument, StorageFailure
from dagster_delta.storage.cloud.client import Bucket, CloudClient, environment, open_bucket
from dagster_delta.storage.cloud.options import CloudOptions, CredentialProvider, parse_options

_KEYS = ("service_account_key", "service_account", "application_credentials")
_OTHERS = ("bearer_token", "skip_signature", "base_url", "conditional_put", "credential_provider")
_NAMES = {
    **{name: name for name in (*_KEYS, *_OTHERS)},
    "service_account_path": "service_account",
    **dict.fromkeys(("endpoint", "endpoint_url"), "base_url"),
}
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"


def parse_gcs(options: Mapping[str, object]) -> CloudOptions:
    """The storage options of a user."""
    return parse_options(options, _NAMES, ("google_",))


def connect_gcs(options: CloudOptions, bucket: Bucket) -> CloudClient:
    """A client of a bucket."""
    endpoint = options.get("base_url") or environment("GOOGLE_BASE_URL")
    provider = options.provider({"token": "token"}) or _google_auth(options)
    config = options.of_client()
    if endpoint is not None:
        config["base_url"] = endpoint
    if provider or options.get("skip_signature") or "bearer_token" in options:
        # The client would read them all the same.
        config = {name: value for name, value in config.items() if name not in _KEYS}
    store = open_bucket(
        "GCSStore",
        bucket.name,
        config,
        endpoint=endpoint,
        provider=provider,
    )
    return CloudClient(store, is_trusted=endpoint is None)


def _google_auth(options: CloudOptions) -> CredentialProvider | None:
    """What reads credentials of a kind that the client does not read."""
    if options.get("skip_signature") or "bearer_token" in options:
        return None
    content = _key_of(options)
    if not isinstance(content, dict) or content.get("type") in {None, "service_account"}:
        # The client reads it, and refuses it if it is not a key.
        return None
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


def _key_of(options: CloudOptions) -> object:
    """The content of the credentials file, or of the key among the options."""
    text = options.get("service_account_key")
    named = options.get("service_account") or options.get("application_credentials")
    path = named or environment("GOOGLE_APPLICATION_CREDENTIALS")
    try:
        if text is None and path is not None:
            text = Path(path).read_bytes()
        return None if text is None else json.loads(text)
    except OSError as error:
        raise InvalidArgument(
            f"The credentials file {path!r} cannot be read ({type(error).__name__})"
        ) from None
    except ValueError:
        return None


def connector_settings(options: CloudOptions, _uri: str) -> Mapping[str, str] | None:
    """The settings of Google's connector for the options; None if it has none for one of them."""
    if options.keys() & {"service_account_key", "bearer_token", "credential_provider"}:
        return None
    found = {}
    if "base_url" in options:
        found["fs.gs.storage.root.url"] = options["base_url"]
    key_file = options.get("service_account") or options.get("application_credentials")
    if options.get("skip_signature"):
        found["fs.gs.auth.type"] = "UNAUTHENTICATED"
    elif key_file is not None:
        found["fs.gs.auth.type"] = "SERVICE_ACCOUNT_JSON_KEYFILE"
        found["fs.gs.auth.service.account.json.keyfile"] = key_file
    return found
