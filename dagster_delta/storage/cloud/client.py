"""Clients of one bucket, one per identity, for the three clouds.

One library serves all of them: `obstore`, the Python binding of the Rust crate `object_store`. It
signs, keeps connections, and retries requests that got no answer or a failure, with growing random
pauses. It never runs in a process that was forked after its first use, so that is an error here.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar

from dagster_delta.errors import InvalidArgument, StorageFailure
from dagster_delta.storage.forks import note_use

_RETRIES = 4
_FIRST_PAUSE = timedelta(milliseconds=200)
_LONGEST_PAUSE = timedelta(seconds=2)
_RETRY_DEADLINE = timedelta(seconds=180)
_LONGEST_SILENCE = timedelta(seconds=60)

_Settings = TypeVar("_Settings")


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket, or a container of an Azure account."""

    name: str
    account: str | None = None
    """The Azure account that a URI names; None if the options or the environment do."""


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
    lists_in_order: bool = True
    """Whether listings are in the order of whole keys."""
    confirm_listing: Callable[[str, str], bool] | None = None
    """Whether the storage has no object with a prefix after a key; None if no such check exists.
    Raises BrokenAnswer if something else than the storage answers."""
    honours_conditions: bool | None = None
    """What a probe showed; None before it."""


class CloudSettings(Hashable, Protocol):
    """The settings of one cloud. Hashable, equal if they name the same identity and endpoint."""

    @property
    def conditional_put(self) -> str | None:
        """`etag` or `disabled`, if the user says so."""


class Provider:
    """Credentials that the client asks for, with errors that show nothing but their class."""

    def __init__(self, ask: Callable[[], Mapping[str, object]]) -> None:
        self._ask = ask

    def __call__(self) -> Mapping[str, object]:
        """The credentials. Raises RuntimeError."""
        try:
            return self._ask()
        except InvalidArgument as error:
            raise RuntimeError(f"no credentials: {error.message}") from None
        except Exception as error:  # noqa: BLE001 - each provider has its own classes
            raise RuntimeError(f"no credentials: {type(error).__name__}") from None


@functools.lru_cache(maxsize=64)
def connect(
    create: Callable[[_Settings, Bucket], CloudClient], settings: _Settings, bucket: Bucket
) -> CloudClient:
    """The client of a bucket, cached: it holds the connections and what a probe showed.

    Settings are hashable, and equal if they name the same identity and endpoint.
    """
    note_use()
    return create(settings, bucket)


def import_client(extra: str) -> Any:  # noqa: ANN401
    """The module `obstore.store`."""
    try:
        import obstore.store
    except ImportError as error:
        raise StorageFailure(
            f"Tables in the cloud need its client: pip install 'dagster-delta-protocol[{extra}]'"
        ) from error
    return obstore.store


def environment(*variables: str) -> str | None:
    """The value of the first of some environment variables that is set and not empty."""
    return next((value for name in variables if (value := os.environ.get(name))), None)


def client_options(endpoint: str | None, ca_bundle: str | None = None) -> dict[str, object]:
    """Options of the HTTP client."""
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


def retry_options() -> dict[str, object]:
    """How often, and how long, the client repeats a request."""
    backoff = {"init_backoff": _FIRST_PAUSE, "max_backoff": _LONGEST_PAUSE, "base": 2}
    return {"max_retries": _RETRIES, "retry_timeout": _RETRY_DEADLINE, "backoff": backoff}
