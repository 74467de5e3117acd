"""Asset keys for the tables below a root: their relative paths."""

from __future__ import annotations

import re
from collections.abc import Sequence

import dagster as dg

from dagster_delta.errors import InvalidArgument

_NOT_IN_KEYS = re.compile(r"[^A-Za-z0-9_.-]")


def path_below(root: str, uri: str) -> str:
    """Path of a table relative to the root, both in their store's spelling; empty for the root
    itself.
    """
    root, uri = root.rstrip("/"), uri.rstrip("/")
    if uri != root and not uri.startswith(f"{root}/"):
        raise InvalidArgument(f"The table {uri} does not lie below {root}")
    return uri[len(root) + 1 :]


def table_key(prefix: Sequence[str], root: str, uri: str) -> dg.AssetKey:
    """Key of the asset of a table: the prefix, and its path below the root.

    A table at the root itself is named by the last part of its location. Characters that Dagster
    does not accept become underscores.
    """
    path = path_below(root, uri) or uri.rstrip("/").rsplit("/", 1)[-1]
    parts = [_NOT_IN_KEYS.sub("_", each) for each in path.split("/")]
    return dg.AssetKey([*prefix, *parts])
