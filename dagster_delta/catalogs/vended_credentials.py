"""Credentials of a storage that Unity Catalog gives for a while, renewed before they expire.

They are a credential provider of the cloud's options (see `storage.cloud.options`): the client asks
again minutes before the end, in a job of hours and on executors alike.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from dagster_delta.catalogs.unity_client import (
    CatalogRefusal,
    UnityServer,
    client_of,
    table_path,
)
from dagster_delta.catalogs.unity_messages import Credentials, StorageCredential
from dagster_delta.errors import StorageFailure, TableNotFound

_NAMES = {
    "s3.access-key-id": "access_key_id",
    "s3.secret-access-key": "secret_access_key",
    "s3.session-token": "session_token",
    "azure.sas-token": "sas_token",
    "gcs.oauth-token": "token",
}
"""The catalog's names of credentials, and those of the clouds' providers."""
_OLDER_GROUPS = {
    "s3": "aws_temp_credentials",
    "azure": "azure_user_delegation_sas",
    "gcs": "gcp_oauth_token",
}
_RENEWED_SECONDS = 300
"""Credentials are asked for again so long before they expire."""
_PAUSE_SECONDS = 5
"""How long after a failure they are asked for again while the held ones are valid."""

_Answer = TypeVar("_Answer")


class CredentialSource(msgspec.Struct, frozen=True):
    """Where to ask for credentials. Picklable and hashable: it is an option of a store, which opens
    the same bucket once for each source.
    """

    server: UnityServer
    location: str
    """URI of the table."""
    table: str
    """Name of the table."""
    is_new: bool = False
    """Whether the table is being created: the catalog may not have it by its name yet."""
    staging_id: str | None = None
    """Id of a new table that the catalog manages."""
    older_table_id: str | None = None
    """Id of the table, for servers without the Delta API."""

    def __call__(self) -> Mapping[str, object]:
        """The credentials now, in the names of the clouds' options, and `expires_at`.

        Raises:
            StorageFailure: the catalog gave none.
        """
        found = _held_by(self, os.getpid()).current()
        names = {_NAMES[key]: value for key, value in found.config.items() if key in _NAMES}
        given = {name: value for name, value in names.items() if value}
        if not given:
            raise StorageFailure(
                "Unity Catalog gives no credentials for the storage of the table: pass "
                "storage_options with credentials of your own, and vend_credentials=False",
                table=self.location,
            )
        expires_ms = found.expiration_time_ms
        return {
            **given,
            "expires_at": expires_ms and datetime.fromtimestamp(expires_ms / 1000, UTC),
        }

    def fetch(self) -> StorageCredential:
        """New credentials, those for the longest prefix of the location."""
        if self.older_table_id is not None:
            return self._fetch_older()
        answer = self._ask_for_new() if self.is_new else self._ask_by_name()
        fitting = [
            credential
            for credential in answer.storage_credentials
            if _is_below(self.location, credential.prefix)
        ]
        return max(fitting, key=lambda found: len(found.prefix), default=StorageCredential())

    def _ask_for_new(self) -> Credentials:
        client = client_of(self.server)
        try:
            if self.staging_id is not None:
                path = f"/staging-tables/{quote(self.staging_id, safe='')}/credentials"
                return client.get(path, Credentials)
            query = {"location": self.location, "operation": "PATH_CREATE_TABLE"}
            return client.get("/temporary-path-credentials", Credentials, query)
        except (CatalogRefusal, TableNotFound) as refusal:
            # A job may go on for hours after the first commit has registered the table.
            try:
                return self._ask_by_name()
            except TableNotFound:
                raise refusal from None

    def _ask_by_name(self) -> Credentials:
        client, path = client_of(self.server), f"{table_path(self.table)}/credentials"
        return _with_fewer_rights(lambda op: client.get(path, Credentials, {"operation": op}))

    def _fetch_older(self) -> StorageCredential:
        client, path = client_of(self.server), "/temporary-table-credentials"

        def ask(operation: str) -> dict[str, Any]:
            body = {"table_id": self.older_table_id, "operation": operation}
            return client.post_older(path, body, dict[str, Any])

        found = _with_fewer_rights(ask)
        config = {name: _find_older(found, *name.split(".")) for name in _NAMES}
        return StorageCredential(self.location, "", found.get("expiration_time"), config)


def _with_fewer_rights(ask: Callable[[str], _Answer]) -> _Answer:
    """The answer for writers, or for readers if the caller may not write."""
    try:
        return ask("READ_WRITE")
    except CatalogRefusal as refusal:
        if refusal.status != 403:
            raise
        return ask("READ")


def _find_older(answer: Mapping[str, Any], cloud: str, key: str) -> str | None:
    """A credential in an answer of the API before the Delta API."""
    return (answer.get(_OLDER_GROUPS[cloud]) or {}).get(key.replace("-", "_"))


def _is_below(location: str, prefix: str) -> bool:
    return f"{location.rstrip('/')}/".startswith(f"{prefix.rstrip('/')}/") if prefix else True


class _HeldCredentials:
    """The credentials of one source in this process. Thread-safe."""

    def __init__(self, source: CredentialSource) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._found: StorageCredential | None = None
        self._renewed_at = 0.0

    def current(self) -> StorageCredential:
        """Credentials that are valid for minutes, or for as long as the catalog gives them."""
        with self._lock:
            if self._found is None or time.time() >= self._renewed_at:
                self._renew()
            assert self._found is not None  # noqa: S101
            return self._found

    def _renew(self) -> None:
        now = time.time()
        try:
            found = self._source.fetch()
        except StorageFailure:
            held = self._found
            if held is None or now * 1000 >= (held.expiration_time_ms or 0):
                raise
            # Those of before are valid still; the next caller asks again.
            self._renewed_at = now + _PAUSE_SECONDS
            return
        expires = (found.expiration_time_ms or float("inf")) / 1000
        # Half of those that are short-lived: each request would ask for new ones otherwise.
        self._found, self._renewed_at = found, max(expires - _RENEWED_SECONDS, (now + expires) / 2)


@lru_cache(maxsize=1024)
def _held_by(source: CredentialSource, _process: int) -> _HeldCredentials:
    return _HeldCredentials(source)
