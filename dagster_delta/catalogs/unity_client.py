"""Requests to a server of Unity Catalog: authentication, retries, and what its refusals mean.

Spec: Unity Catalog Managed Tables Specification 1.0, `api/delta.yaml` and `api/all.yaml` of
unitycatalog/unitycatalog.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import msgspec
import urllib3
from urllib3.exceptions import HTTPError, SSLError

from dagster_delta._version import __version__
from dagster_delta.errors import (
    InvalidArgument,
    StorageFailure,
    TableAlreadyExists,
    TableNotFound,
)

_API = "/api/2.1/unity-catalog"
_DELTA = f"{_API}/delta/v1"
_PROTOCOL_VERSION = "1.0"
_ATTEMPTS = 4
_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 10.0
_CONNECT_SECONDS = 10.0
_RENEW_SECONDS = 60
"""A token of a service principal is renewed so long before it expires."""
_LONGEST_MESSAGE = 1000

_Body = TypeVar("_Body")


class CatalogRefusal(StorageFailure):
    """The catalog answered with an error. Public code sees it as a StorageFailure."""

    status: int = 0
    """HTTP status; 0 if there was no answer."""
    kind: str = ""
    """Type of the error as the server names it."""

    @property
    def is_final(self) -> bool:
        """Whether the request surely had no effect."""
        return 400 <= self.status < 500


class UnityServer(msgspec.Struct, frozen=True):
    """Address of a server, and who asks it. Picklable; it never shows its secrets."""

    uri: str
    """`https://host`, without the path of the API."""
    token: str | None = None
    client_id: str | None = None
    client_secret: str | None = None
    oauth_uri: str | None = None
    ca_bundle: str | None = None
    """Path of certificates to trust instead of the system's."""
    timeout_seconds: float = 60.0
    allow_http: bool = False
    """Whether a token may travel without TLS to another machine."""

    def __repr__(self) -> str:
        return f"UnityServer({self.uri!r})"

    def check(self) -> None:
        """Raises InvalidArgument for an address or credentials that cannot be used."""
        self._check_address(self.uri, "the URI of a Unity Catalog")
        if self.oauth_uri is not None:
            self._check_address(self.oauth_uri, "oauth_uri")
        for name in ("token", "client_id", "client_secret"):
            value = getattr(self, name)
            # Errors of the HTTP client would show it.
            if value and not (value.isascii() and value.isprintable()):
                raise InvalidArgument(
                    f"{name} of a Unity Catalog has a line break, or a character that is not "
                    "ASCII: check where it is read from, often a file that ends in a line break"
                )
        if self.token and self.client_id:
            raise InvalidArgument("pass a token or a service principal, not both")
        if bool(self.client_id) != bool(self.client_secret):
            raise InvalidArgument("a service principal needs client_id and client_secret")

    def _check_address(self, uri: str, what: str) -> None:
        parts = urlsplit(uri)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise InvalidArgument(f"{what} is https://host, or http://localhost:port")
        # Some services take a query at the address of their tokens.
        has_query = bool(parts.query) and uri == self.uri
        if parts.username or parts.password or has_query:
            raise InvalidArgument(f"{what} holds a secret: pass it as token or client_secret")
        is_here = parts.hostname in {"localhost", "127.0.0.1", "::1"}
        if parts.scheme == "http" and not (is_here or self.allow_http):
            raise InvalidArgument(
                f"{what} is {uri}, which would be sent secrets unencrypted: use https, or pass "
                "allow_http=True"
            )


class _Token(msgspec.Struct):
    access_token: str
    expires_in: float = 3600.0


class _ErrorBody(msgspec.Struct):
    type: str = ""
    message: str = ""


class _ErrorAnswer(msgspec.Struct):
    """The Delta API's errors are `error`; those of the older API are flat."""

    error: _ErrorBody | None = None
    error_code: str = ""
    message: str = ""


class UnityClient:
    """One server, as one caller. Thread-safe."""

    def __init__(self, server: UnityServer) -> None:
        server.check()
        self._server = server
        self._pool = _open_pool(server)
        self._lock = threading.Lock()
        self._bearer = server.token
        self._expires = float("inf")
        self._has_delta_api = False

    def __repr__(self) -> str:
        return f"UnityClient({self._server.uri!r})"

    def has_delta_api(self, catalog: str) -> bool:
        """Whether the server has the Delta API, asked until it has. Raises TableNotFound for a
        catalog that it does not have.
        """
        if not self._has_delta_api:
            query = {"catalog": catalog, "protocol-versions": _PROTOCOL_VERSION}
            try:
                self.get("/config", object, query)
            except CatalogRefusal as refusal:
                if refusal.status == 404 or refusal.kind == "InvalidParameterValueException":
                    return False
                raise
            self._has_delta_api = True
        return True

    def get(self, path: str, answer: type[_Body], query: Mapping[str, object] = {}) -> _Body:
        """The answer to a GET of the Delta API, repeated while the server is away."""
        return self.ask("GET", f"{_DELTA}{path}", answer, query=query, repeats=True)

    def post(self, path: str, body: object, answer: type[_Body], *, repeats: bool = False) -> _Body:
        """The answer to a POST of the Delta API, repeated only if the request surely had no effect,
        or `repeats` says that another one does no harm.
        """
        return self.ask("POST", f"{_DELTA}{path}", answer, body=body, repeats=repeats)

    def delete(self, path: str) -> None:
        """Send a DELETE of the Delta API."""
        self.ask("DELETE", f"{_DELTA}{path}", object, repeats=True)

    def get_older(self, path: str, answer: type[_Body], query: Mapping[str, object] = {}) -> _Body:
        """The answer to a GET of the API before the Delta API."""
        return self.ask("GET", f"{_API}{path}", answer, query=query, repeats=True)

    def post_older(self, path: str, body: object, answer: type[_Body]) -> _Body:
        """The answer to a POST of the API before the Delta API, which may be repeated."""
        return self.ask("POST", f"{_API}{path}", answer, body=body, repeats=True)

    def ask(
        self,
        method: str,
        path: str,
        answer: type[_Body],
        *,
        query: Mapping[str, object] = {},
        body: object = None,
        repeats: bool,
    ) -> _Body:
        """The decoded answer.

        Raises:
            TableNotFound: the catalog has no such table, schema or catalog.
            TableAlreadyExists: the catalog has a table of the name.
            CatalogRefusal: any other refusal, or no answer.
        """
        if query:
            path = f"{path}?{urlencode(query)}"
        for attempt in range(_ATTEMPTS):
            try:
                return self._ask_once(method, path, answer, body)
            except CatalogRefusal as refusal:
                is_last = attempt == _ATTEMPTS - 1
                if is_last or not (_is_throttled(refusal) or (repeats and not refusal.is_final)):
                    raise
                pause = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2**attempt)
                time.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - no secret depends on it
        raise AssertionError

    def _ask_once(self, method: str, path: str, answer: type[_Body], body: object) -> _Body:
        for is_renewed in (False, True):
            response = self._send(
                method, self._server.uri + path, body, {"Authorization": self._authorization()}
            )
            if response.status == 401 and self._server.client_id and not is_renewed:
                # Some servers end tokens early.
                self._expires = 0.0
                continue
            break
        if response.status >= 300:
            raise _describe_refusal(response, f"{method} {urlsplit(path).path}")
        if not response.data or answer is object:
            return msgspec.convert({}, answer) if answer is not object else answer()
        try:
            return msgspec.json.decode(response.data, type=answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CatalogRefusal(
                f"the answer of Unity Catalog to {method} {urlsplit(path).path} cannot be read "
                f"({error}); check that the URI is that of a Unity Catalog"
            ) from None

    def _send(
        self, method: str, url: str, body: object, headers: dict[str, str]
    ) -> urllib3.BaseHTTPResponse:
        sent: dict[str, Any] = {}
        if isinstance(body, bytes):
            sent["body"] = body
        elif body is not None:
            sent["body"] = msgspec.json.encode(body)
            headers = {**headers, "Content-Type": "application/json"}
        headers = {key: value for key, value in headers.items() if value}
        headers["User-Agent"] = f"dagster-delta-protocol/{__version__}"
        try:
            return self._pool.request(method, url, headers=headers, redirect=False, **sent)
        except SSLError as error:
            cause = error.__cause__ or error
            reason = getattr(cause, "verify_message", None) or cause
            problem = f"has no TLS connection that is trusted here ({reason})"
            remedy = "name the file of a private authority's certificates by ca_bundle, which is "
            remedy += self._server.ca_bundle or "not set"
        except HTTPError as error:
            problem = f"did not answer ({type(error.__cause__ or error).__name__})"
            remedy = "check the URI and the network"
        place = urlsplit(url).netloc
        raise CatalogRefusal(f"Unity Catalog at {place} {problem}: {remedy}")

    def _authorization(self) -> str:
        if self._server.client_id is None:
            return f"Bearer {self._bearer}" if self._bearer else ""
        with self._lock:
            if time.monotonic() >= self._expires or self._bearer is None:
                token = self._fetch_token()
                self._bearer = token.access_token
                lifetime = max(1.0, token.expires_in - _RENEW_SECONDS)
                self._expires = time.monotonic() + lifetime
            return f"Bearer {self._bearer}"

    def _fetch_token(self) -> _Token:
        server = self._server
        url = server.oauth_uri or f"{server.uri}/oidc/v1/token"
        form = urlencode({"grant_type": "client_credentials", "scope": "all-apis"}).encode()
        login = urllib3.make_headers(basic_auth=f"{server.client_id}:{server.client_secret}")
        headers = {**login, "Content-Type": "application/x-www-form-urlencoded"}
        response = self._send("POST", url, form, headers)
        if response.status != 200:
            raise _describe_refusal(response, "the request for a token")
        try:
            # Some servers spell expires_in as text.
            return msgspec.json.decode(response.data, type=_Token, strict=False)
        except msgspec.DecodeError:
            pass
        # Outside the handler: the text of the answer holds the token.
        raise CatalogRefusal(
            f"the answer of {urlsplit(url).netloc} to the request for a token holds none: check "
            "oauth_uri"
        )


def _is_throttled(refusal: CatalogRefusal) -> bool:
    # The limit of unpublished commits is another 429, which waiting does not help.
    return refusal.status == 429 and refusal.kind != "ResourceExhaustedException"


def _open_pool(server: UnityServer) -> urllib3.PoolManager:
    parts = urlsplit(server.uri)
    options: dict[str, Any] = {
        "timeout": urllib3.Timeout(connect=_CONNECT_SECONDS, read=server.timeout_seconds),
        "retries": False,
        "ca_certs": server.ca_bundle or os.environ.get("REQUESTS_CA_BUNDLE"),
        "maxsize": 16,
    }
    proxy = getproxies().get(parts.scheme)
    if proxy and not proxy_bypass(parts.hostname or ""):
        return urllib3.ProxyManager(proxy, **options)
    return urllib3.PoolManager(**options)


@lru_cache(maxsize=64)
def _client_of(server: UnityServer, _process: int) -> UnityClient:
    return UnityClient(server)


def client_of(server: UnityServer) -> UnityClient:
    """The client of this process for a server: it holds connections and tokens. Raises
    InvalidArgument for an address that cannot be used.
    """
    # A process that was forked must not share the sockets of its parent.
    return _client_of(server, os.getpid())


def _describe_refusal(response: urllib3.BaseHTTPResponse, what: str) -> Exception:
    """The error for an answer of the server that is a refusal."""
    try:
        found = msgspec.json.decode(response.data, type=_ErrorAnswer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        found = _ErrorAnswer()
    body = found.error or _ErrorBody(found.error_code, found.message)
    message = body.message[:_LONGEST_MESSAGE] or f"HTTP status {response.status}"
    if body.type in _MISSING:
        return TableNotFound(f"Unity Catalog does not have it: {message}")
    if body.type in _TAKEN:
        return TableAlreadyExists(f"Unity Catalog has it already: {message}")
    remedy = _REMEDIES.get(response.status, "")
    refusal = CatalogRefusal(f"Unity Catalog refused {what}: {message}{remedy}")
    refusal.status, refusal.kind = response.status, body.type
    return refusal


_MISSING = frozenset(
    {
        *("NoSuchTableException", "NoSuchSchemaException", "NoSuchCatalogException"),
        *("TABLE_NOT_FOUND", "SCHEMA_NOT_FOUND", "CATALOG_NOT_FOUND", "NOT_FOUND"),
        *("TABLE_DOES_NOT_EXIST", "SCHEMA_DOES_NOT_EXIST", "CATALOG_DOES_NOT_EXIST"),
    }
)
_TAKEN = frozenset({"AlreadyExistsException", "TABLE_ALREADY_EXISTS"})
_REMEDIES = {
    401: "; check the token, which may have expired",
    403: "; ask its owner for the privilege",
    404: "; check the URI",
}


def table_path(name: str) -> str:
    """The path of a table in the Delta API. Raises InvalidArgument for a name that is not
    `catalog.schema.table`.
    """
    catalog, schema, table = split_name(name)
    return f"{schema_path(catalog, schema)}/tables/{quote(table, safe='')}"


def schema_path(catalog: str, schema: str) -> str:
    """The path of a schema in the Delta API."""
    return f"/catalogs/{quote(catalog, safe='')}/schemas/{quote(schema, safe='')}"


def split_name(name: str) -> tuple[str, str, str]:
    """Catalog, schema and table of a name; a part with a dot in it is quoted by backticks.

    Raises:
        InvalidArgument: it does not have three parts.
    """
    parts, rest = list[str](), name
    while rest or not parts:
        if rest.startswith("`"):
            part, quoted, rest = rest[1:].partition("`")
            if not quoted or (rest and not rest.startswith(".")):
                break
            rest = rest[1:]
        else:
            part, _, rest = rest.partition(".")
        parts.append(part)
    if len(parts) != 3 or not all(parts) or name.endswith("."):
        raise InvalidArgument(
            f"{name!r} is not the name of a table in Unity Catalog: write catalog.schema.table, "
            "and a part with a dot in backticks"
        )
    return parts[0], parts[1], parts[2]


def join_name(*parts: str) -> str:
    """The name that `split_name` reads."""
    return ".".join(f"`{part}`" if "." in part else part for part in parts)
