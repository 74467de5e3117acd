"""Which other programs read and write a table, for those who write it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dagster_delta.evolution.programs import READERS_PROPERTY as READERS_PROPERTY
from dagster_delta.evolution.programs import known_readers as known_readers
from dagster_delta.evolution.programs import program_lines
from dagster_delta.evolution.required_protocol import required_features
from dagster_delta.protocol.schema import StructType

if TYPE_CHECKING:
    from dagster_delta.table.read.snapshot import Snapshot


def lines_about_properties(created: Snapshot, properties: Mapping[str, str]) -> tuple[str, ...]:
    """What the properties that a new table was given mean for other programs, a line for each."""
    if not required_features(StructType(()), properties):
        return ()
    return tuple(program_lines(None, created.configuration))
