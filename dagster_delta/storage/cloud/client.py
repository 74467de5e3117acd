"""Clients of one bucket, one per identity, for the three clouds.

One library serves all of them: `obstore`, the Python binding of the Rust crate `object_store`. It
signs, keeps connections, and retries requests that got no answer or a failure, with growing random
pauses. It never runs in a process that was forked after its first use, so that is an error here.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from dagster_delta.errors import InvalidArgument
from dagster_delta.storage.cloud.options import CloudOptions, CredentialProvider
from dagster_delta.storage.forks import note_use

_RETRIES = 4
_FIRST_PAUSE = timedelta(milliseconds=200)
_LONGEST_PAUSE = timedelta(seconds=2)
_RETRY_DEADLINE = timedelta(seconds=180)
_LONGEST_SILENCE = timedelta(seconds=60)


class Bucket(msgspec.Struct, frozen=True):
    """A bucket, or a container of an Azure account."""

    name: str
    account: str | None = None
    """The host of the Azure account that a URI names; None if the options or the environment name
    the account."""


@dataclass(eq=False)
class CloudClient:
    """How to reach one bucket."""

    store: Any = field(repr=False)
    """The `obstore` store of the whole bucket. Its `repr` panics where the environment names the
    account."""
    is_trusted: bool
    """Whether it is the cloud itself, whose conditional puts are documented."""
    has_suffix_ranges: bool = True
    """Whether the last bytes of an object can be requested without knowing its size."""
    honours_conditions: bool | None = None
    """What a probe showed; None before it."""


class _Provider:
    """Credentials that the client asks for, with errors that show nothing but their class."""

    def __init__(self, ask: CredentialProvider) -> None:
        self._ask = ask

    def __call__(self) -> Mapping[str, object]:
        try:
            return self._ask()
        except InvalidArgument as error:
            raise RuntimeError(f"no credentials: {error.message}") from None
        except Exception as error:  # noqa: BLE001 - each provider has its own classes
            raise RuntimeError(f"no credentials: {type(error).__name__}") from None


@functools.lru_cache(maxsize=64)
def connect(
    create: Callable[[CloudOptions, Bucket], CloudClient], options: CloudOptions, bucket: Bucket
) -> CloudClient:
    """The client of a bucket, cached: it holds the connections and what a probe showed."""
    note_use()
    return create(options, bucket)


def open_bucket(
    kind: str,
    bucket: str,
    config: Mapping[str, object],
    *,
    endpoint: str | None,
    ca_bundle: str | None = None,
    provider: CredentialProvider | None = None,
) -> Any:  # noqa: ANN401
    """The `obstore` store of a bucket.

    Args:
        kind: name of the class of the store.
        bucket: name of the bucket or container.
        config: the options of the class.
        endpoint: URL of another provider than the cloud itself.
        ca_bundle: path of certificates to trust besides the system's.
        provider: returns the credentials, in the names of the client.
    """
    import obstore.store
    from obstore.exceptions import BaseError

    given = {} if provider is None else {"credential_provider": _Provider(provider)}
    client_options = _client_options(endpoint, ca_bundle)
    create = getattr(obstore.store, kind)
    try:
        return create(
            bucket,
            config=config,
            client_options=client_options,
            retry_config=_retry_options(),
            **given,
        )
    except (ValueError, BaseError) as error:
        reason = type(error).__name__
    # Outside the handler: the text of the error may hold a secret.
    raise InvalidArgument(
        f"The storage options are not valid for {kind} ({reason}): check "
        f"{', '.join((*config, 'the account, the credentials, the region and the endpoint'))}"
    )


def environment(*variables: str) -> str | None:
    """The value of the first of some environment variables that is set and not empty."""
    return next((value for name in variables if (value := os.environ.get(name))), None)


def _client_options(endpoint: str | None, ca_bundle: str | None) -> dict[str, object]:
    options: dict[str, object] = {
        "connect_timeout": timedelta(seconds=10),
        "read_timeout": _LONGEST_SILENCE,
        # Of a whole request: a large object takes longer than the default of 30 seconds.
        "timeout": timedelta(minutes=30),
        "allow_http": endpoint is not None and endpoint.lower().startswith("http://"),
    }
    if ca_bundle is not None:
        try:
            options["root_certificate"] = Path(ca_bundle).read_bytes()
        except OSError as error:
            raise InvalidArgument(
                f"The CA bundle {ca_bundle!r} cannot be read: {error.strerror}"
            ) from None
    return options


def _retry_options() -> dict[str, object]:
    backoff = {"init_backoff": _FIRST_PAUSE, "max_backoff": _LONGEST_PAUSE, "base": 2}
    return {"max_retries": _RETRIES, "retry_timeout": _RETRY_DEADLINE, "backoff": backoff}
