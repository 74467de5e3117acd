"""Which other programs read and write a table, for those who write it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dagster_delta.evolution.programs import READERS_PROPERTY as READERS_PROPERTY
from dagster_delta.evolution.programs import known_readers as known_readers
from dagster_delta.evolution.programs import lines_about_clone, lines_about_features
from dagster_delta.evolution.required_protocol import required_features
from dagster_delta.protocol.schema import StructType

if TYPE_CHECKING:
    from dagster_delta.table.read.snapshot import Snapshot


def list_readers(snapshot: Snapshot) -> tuple[str, ...]:
    """The programs that a table names as its readers."""
    named = snapshot.metadata.configuration.get(READERS_PROPERTY, "")
    return tuple(filter(None, map(str.strip, named.split(","))))


def clone_lines(source: Snapshot, *, is_shallow: bool) -> tuple[str, ...]:
    """What a clone of a version means for other programs, a line for each."""
    return tuple(lines_about_clone(source.configuration, is_shallow=is_shallow))


def lines_about_properties(created: Snapshot, properties: Mapping[str, str]) -> tuple[str, ...]:
    """What the properties that a new table was given mean for other programs, a line for each."""
    features = required_features(StructType(()), properties)
    return tuple(lines_about_features(features, created.configuration))
