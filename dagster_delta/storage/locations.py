"""How the location of a table and the path of a file in it are classified and parsed.

A table's location is what a user types: a plain path, or a URI, whose `file:` form is
percent-encoded. A path passed to a store was already decoded, once, by the code that read it from
the log; so it is not decoded again, even if it is an absolute URI.
"""

from __future__ import annotations

import os
import posixpath
import re
from typing import TypeVar
from urllib.parse import unquote

from dagster_delta.errors import InvalidArgument

_T = TypeVar("_T")

# At least two characters, so that a Windows drive is a path; the slash, so that a file name with a
# colon in it is a path too.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
_URI = r"[A-Za-z][A-Za-z0-9+.-]+://"
# A key may hold slashes; a port is not a key. In a web URI, a user is a token.
_PASSWORD = re.compile(rf"{_URI}[^/@]*:(?!\d+(?:/|$))[^@]*@|https?://[^/]*@", re.IGNORECASE)
_SIGNED = re.compile(
    rf"{_URI}.*[?&][^=&]*(?:sig|signature|token|secret|password|credential|accesskey|key)[^=&]*=",
    re.IGNORECASE,
)

# How plain paths begin that were meant as URIs: `s3//lake`, `gs:lake`, ` s3://lake`. A drive of
# Windows is one letter.
_STORAGE = "abfss?|adl|azure|az|dbfs|file|gcs|gs|hdfs|https?|memory|oss|s3[an]?|s?ftp|wasbs?"
_MEANT_AS_URI = re.compile(
    rf"(?![a-z]:)[^/\\]*:[/\\]{{2}}|[^\w./~\\]*(?:{_STORAGE})(?::|\W?//)", re.IGNORECASE
)

_SPELLINGS = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss", "uc": "catalog"}

_CATALOG_URI = "catalog://"


def scheme_of(location: str) -> str | None:
    """The lower-case scheme of an absolute URI, or None for a path."""
    match = _SCHEME.match(location)
    return match[1].lower() if match else None


def canonical_uri(location: str) -> str:
    """The location with one scheme for those that mean the same storage: `s3` for `s3a`."""
    scheme, separator, rest = location.partition("://")
    return f"{_SPELLINGS.get(scheme, scheme)}{separator}{rest}" if separator else location


def catalog_uri(name: str) -> str:
    """The location of a table that a catalog finds by name: `catalog://main.shop.orders`."""
    return _CATALOG_URI + name


def catalog_name(location: str) -> str | None:
    """The name in the location of a table of a catalog, also written `uc://`; None for others."""
    found = canonical_uri(location)
    return found.removeprefix(_CATALOG_URI) if found.startswith(_CATALOG_URI) else None


def holds_password(location: str) -> bool:
    """Whether a URI names a user with a password (`ftp://user:password@host`) or carries one or a
    signature as a parameter (`https://host/table?sig=…`). A path does not.
    """
    return _PASSWORD.match(location) is not None or _SIGNED.match(location) is not None


def check_no_password(location: str) -> None:
    """Refuse a location that holds a password: it appears in messages, in logs and in metadata."""
    if holds_password(location):
        raise InvalidArgument(
            f"the {scheme_of(location)}: URI of a table holds a password or a signature, and would "
            "show it: take it out, and pass it among the storage options"
        )


def resolve_variable(value: _T) -> _T:
    """The value itself, or that of the environment variable that it stands for, as Dagster's
    `EnvVar` does: the text of an `EnvVar` is the name of the variable.

    Raises:
        InvalidArgument: the variable is not set.
    """
    read = getattr(value, "get_value", None)
    if read is None:
        return value
    found: _T | None = read()
    if found is None:
        name = getattr(value, "env_var_name", "")
        raise InvalidArgument(f"the environment variable {name} is not set, and is needed here")
    return found


def check_place(location: str) -> None:
    """Refuse a path that was meant as a URI: it would silently become a folder on this machine."""
    if scheme_of(location) is None and (found := _MEANT_AS_URI.match(location)):
        # No more of it: what follows may be a password.
        raise InvalidArgument(
            f"the location of a table begins with {found[0]!r}, and is not a URI: write "
            "scheme://bucket/path, such as s3://lake/orders, without quotes and spaces. For a "
            "local folder with this name, put ./ in front of it"
        )


def check_relative_path(path: str) -> str:
    """`path` itself, if it is below the root of its store."""
    if path.startswith("/") or scheme_of(path) is not None:
        raise InvalidArgument(
            "Only paths inside the table can be written, listed or deleted; give one relative to "
            "the root of the table",
            file=path,
        )
    # The substring tests come first: nearly every path passes them and is then not split.
    if ".." in path and ".." in path.split("/"):
        raise InvalidArgument("A path must not climb out of the table with '..'", file=path)
    if "\0" in path:
        raise InvalidArgument("A path must not hold a NUL character", file=repr(path))
    return path


def join_path(directory: str, name: str) -> str:
    """`name` below `directory`, which may be empty (the root) and may end with a slash."""
    directory = directory.rstrip("/")
    return f"{directory}/{name}" if directory else name


def local_root(location: str) -> str:
    """The absolute local path that a plain path or a `file:` URI names.

    `~` is expanded in a plain path; a `file:` URI is percent-decoded. A path that looks like a URI
    is refused.
    """
    scheme = scheme_of(location)
    if scheme is None:
        check_place(location)
        return os.path.abspath(os.path.expanduser(location))  # noqa: PTH100, PTH111
    return os.path.abspath(unquote(strip_file_scheme(location)))  # noqa: PTH100


def absolute_uri(location: str) -> str:
    """One spelling of a location, without a slash at its end: local paths are absolute, and S3 has
    one scheme.
    """
    is_local = scheme_of(location) in (None, "file")
    found = local_root(location) if is_local else canonical_uri(location)
    return found.rstrip("/") or found


def strip_file_scheme(uri: str) -> str:
    """The path of `file:/x`, `file:///x` or `file://localhost/x`, unchanged."""
    rest = uri.partition(":")[2]
    if not rest.startswith("//"):
        return rest
    host, slash, path = rest[2:].partition("/")
    if host not in {"", "localhost"}:
        raise InvalidArgument(
            f"A file URI names the host {host!r}; only files of this machine can be opened. "
            "Write file:///path",
            file=uri,
        )
    return slash + path


def spark_path(uri: str) -> str:
    """A decoded absolute URI in the form that Spark's file systems expect."""
    scheme = scheme_of(uri)
    if scheme in {None, "file"}:
        path = uri if scheme is None else strip_file_scheme(uri)
        return "file:" + posixpath.normpath(path)
    if scheme in {"s3", "s3n"}:
        # Hadoop has one S3 client, and its scheme is s3a.
        return "s3a" + uri[len(scheme) :]
    return uri
