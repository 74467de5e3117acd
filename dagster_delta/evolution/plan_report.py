"""A schema change plan as Markdown, for people who decide about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from dagster_delta.protocol.actions import Protocol

if TYPE_CHECKING:
    from dagster_delta.evolution.schema_changes import SchemaChangePlan
    from dagster_delta.protocol.table_configuration import TableConfiguration

__all__ = ["configuration_lines", "plan_to_markdown"]

_EFFECTS = {
    "nothing": "no change",
    "metadata": "metadata only",
    "validates": "metadata only, after existing rows are validated",
    "rewrites": "existing files are rewritten",
}


def plan_to_markdown(plan: SchemaChangePlan) -> str:
    """The plan as Markdown: steps, costs, protocol, properties and schema diff. Raises nothing."""
    return "\n".join(_lines(plan)) + "\n"


def _lines(plan: SchemaChangePlan) -> Iterator[str]:
    yield "| Change | Cost |"
    yield "|---|---|"
    for each in plan.steps:
        yield f"| {_cell(each.what)} | {_EFFECTS[each.effect]} |"
    yield ""
    if not plan.changes_anything:
        yield "No change is needed: there is nothing to commit."
        return
    yield _cost(plan)
    for check in plan.checks:
        yield f"- every existing row must satisfy {_code(check.name)}: {_code(check.sql)}"
    yield from configuration_lines(plan.before, plan.after)
    if changes := plan.schema_changes:
        yield ""
        yield "```diff"
        yield from changes.lines
        yield "```"


def configuration_lines(before: TableConfiguration, after: TableConfiguration) -> Iterator[str]:
    """What becomes of the protocol and the properties, as items of a list. Raises nothing."""
    yield from _protocol(before.protocol, after.protocol)
    yield from _properties(before.metadata.configuration, after.metadata.configuration)


def _cost(plan: SchemaChangePlan) -> str:
    if plan.frees_files_of_feature:
        known = f" ({_size(plan)})" if plan.affected_files else ""
        return f"**Rewrites data**: the files that use the feature{known}, in a commit of its own."
    if plan.rewrites_data:
        return f"**Rewrites data**: {_size(plan)}, in one commit."
    if plan.validates_rows:
        return "**Reads data** where statistics do not prove the constraint; rewrites none."
    if plan.existing_defaults:
        return "**Metadata only**: no row is read, and no data file is written."
    return "**Metadata only**: no data file is read or written."


def _size(plan: SchemaChangePlan) -> str:
    return f"{plan.affected_files} files, {plan.affected_bytes} bytes"


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


def _properties(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) == after.get(key):
            continue
        if key in after:
            yield f"- property {_code(f'{key} = {after[key]}')}"
        else:
            yield f"- property {_code(key)} unset"


def _code(text: str) -> str:
    return f"`{text.replace('`', '')}`" if "`" in text else f"`{text}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
