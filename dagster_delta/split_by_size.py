"""Batches of limited size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_T = TypeVar("_T")


def split_by_size(
    items: Iterable[_T], size_of: Callable[[_T], int], max_bytes: int
) -> Iterator[list[_T]]:
    """The items in batches of at most `max_bytes`, or of one item."""
    batch: list[_T] = []
    total = 0
    for item in items:
        size = size_of(item)
        if batch and total + size > max_bytes:
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size
    if batch:
        yield batch
