"""Changes of protocol and properties as Markdown, for people who decide about them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_delta.evolution.required_protocol import new_features
from dagster_delta.protocol.actions import Protocol
from dagster_delta.protocol.features.registry import find_feature

if TYPE_CHECKING:
    from dagster_delta.evolution.schema_history import SchemaChanges
    from dagster_delta.protocol.features.table_configuration import TableConfiguration

ENABLE_FEATURES = "pass enable_features=True"
"""The Python option that turns on the table features for a change."""


@dataclass(frozen=True, slots=True)
class MissingSwitch:
    """A switch that is off and that a change needs."""

    name: str
    """Table feature, table property or option: `columnMapping`."""
    remedy: str
    """How to turn it on, as an imperative, with Python options."""


def configuration_lines(before: TableConfiguration, after: TableConfiguration) -> Iterator[str]:
    """Changes of the protocol and the properties, as list items."""
    yield from _protocol(before.protocol, after.protocol)
    if names := new_features(before, after):
        yield (
            f"- needs {', '.join(map(_feature, names))}, which the table does not have yet; other "
            "clients have to support what they use"
        )
    yield from _properties(before.metadata.configuration, after.metadata.configuration)


def _protocol(before: Protocol, after: Protocol) -> Iterator[str]:
    if before == after:
        return
    old = {*(before.reader_features or ()), *(before.writer_features or ())}
    new = [
        name
        for name in dict.fromkeys((*(after.writer_features or ()), *(after.reader_features or ())))
        if name not in old
    ]
    yield (
        f"- protocol: reader {before.min_reader_version} → {after.min_reader_version}, writer "
        f"{before.min_writer_version} → {after.min_writer_version}"
        + (f"; lists {', '.join(new)}" if new else "")
    )


def _feature(name: str) -> str:
    row = find_feature(name)
    users = "readers and writers" if row is None or row.is_reader_feature else "writers"
    return f"table feature {code_span(name)} ({users})"


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
