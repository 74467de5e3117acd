"""Listings of clouds that do not list in the order of whole keys, or that break off at once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from dagster_delta.storage import open_store

# The order of Azure accounts with a hierarchical namespace.
KEYS = [
    *("t/c=DE/1.parquet", "t/c=DE/2.parquet", "t/c=DE-BY/1.parquet", "t/c=DE-BY/2.parquet"),
    *("t/c=DE.x/1.parquet", "t/c=DE0"),
]
NAMES = [key.removeprefix("t/") for key in KEYS]
AZURE = {"account_name": "someone", "account_key": "a2V5"}
S3 = {"endpoint": "http://127.0.0.1:1", "region": "x", "skip_signature": "true"}


class _Service:
    """Lists the keys two by two; breaks off before a page, once."""

    def __init__(self, breaks_after: int | None) -> None:
        self.breaks_after = breaks_after

    def list(self, *_: object, offset: str | None, **__: object) -> Iterator[list[dict[str, Any]]]:
        later = KEYS if offset is None or offset not in KEYS else KEYS[KEYS.index(offset) + 1 :]
        for page, first in enumerate(range(0, len(later), 2)):
            if page == self.breaks_after:
                self.breaks_after = None
                raise OSError("broken off")
            now = datetime.now(UTC)
            yield [
                {"path": key, "size": 1, "last_modified": now} for key in later[first : first + 2]
            ]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("uri", "options"), [("az://c/t", AZURE), ("s3://b/t", S3)])
@pytest.mark.parametrize("breaks_after", [None, 0])
def test_a_listing_by_directories_is_whole(
    monkeypatch: pytest.MonkeyPatch,
    uri: str,
    options: dict[str, str],
    breaks_after: int | None,
) -> None:
    monkeypatch.setattr("obstore.list", _Service(breaks_after).list)
    found = [meta.path for meta in open_store(uri, options).list_recursive()]
    assert sorted(found) == sorted(NAMES)
