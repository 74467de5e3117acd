"""Changes of protocol and properties as Markdown, for people who decide about them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_delta.evolution.required_protocol import new_features
from dagster_delta.protocol.features.registry import find_feature

if TYPE_CHECKING:
    from dagster_delta.evolution.schema_history import SchemaChanges
    from dagster_delta.protocol.features.table_configuration import TableConfiguration

ENABLE_FEATURES = "pass enable_features=True"
"""The Python option that turns on the table features for a change."""

READERS_WITHOUT = {
    "columnMapping": "polars 2.1 cannot read it, and deltalake 1.6 only by `QueryBuilder`",
    "deletionVectors": "deltalake 1.6 reads it only by `QueryBuilder`",
    "typeWidening": "deltalake 1.6 and polars 2.1 cannot read it",
    "v2Checkpoint": "polars 2.1 cannot read it, and deltalake 1.6 only by `QueryBuilder`",
    "vacuumProtocolCheck": "deltalake 1.6 and polars 2.1 cannot read it",
}
"""By table feature: the readers that lose access to a table with it, as tested for
`docs/readers.md`."""


@dataclass(frozen=True, slots=True)
class MissingSwitch:
    """A switch that is off and that a change needs."""

    name: str
    """Table feature, table property or option: `columnMapping`."""
    remedy: str
    """How to turn it on, as an imperative, with Python options."""


def configuration_lines(before: TableConfiguration, after: TableConfiguration) -> Iterator[str]:
    """New features of the table with the readers that lack them, and changes of the properties,
    as list items.
    """
    yield from map(_feature, new_features(before, after))
    yield from _properties(before.metadata.configuration, after.metadata.configuration)


def _feature(name: str) -> str:
    row = find_feature(name)
    users = "readers and writers" if row is None or row.is_reader_feature else "writers"
    others = READERS_WITHOUT.get(name, f"other {users} have to support it")
    return f"- new table feature {code_span(name)} ({users}): {others}"


def missing_switch_lines(switches: Iterable[MissingSwitch]) -> Iterator[str]:
    """The switches that block a planned change, as list items."""
    for switch in switches:
        name = code_span(switch.name)
        yield f"- **off now**: {name}, without which this is refused; {switch.remedy}"


def _properties(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) == after.get(key):
            continue
        if key in after:
            yield f"- property {code_span(f'{key} = {after[key]}')}"
        else:
            yield f"- property {code_span(key)} unset"


def schema_lines(changes: SchemaChanges) -> Iterator[str]:
    """The differences of two schemas as a block; nothing if there are none."""
    if changes:
        yield from ("", "```diff", *changes.lines, "```")


def code_span(text: str) -> str:
    """Text as code."""
    return f"`{text.replace('`', '')}`" if "`" in text else f"`{text}`"


def table_cell(text: str) -> str:
    """Text escaped for a table cell."""
    return text.replace("|", "\\|").replace("\n", " ")
