"""The report of a maintenance run for the UI: what was done, and the table before and after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dagster import MetadataValue

from dagster_delta.orchestration.maintenance.steps import StepReport, health_metadata, spell_bytes
from dagster_delta.orchestration.metadata_keys import RawMetadata

if TYPE_CHECKING:
    from dagster_delta.table.maintenance.health import TableHealth


def maintenance_metadata(
    uri: str, before: TableHealth, after: TableHealth, reports: Sequence[StepReport]
) -> RawMetadata:
    """The effect of one run on one table, as metadata: the shape after it, and a report."""
    metadata: RawMetadata = {
        "delta/report": MetadataValue.md(maintenance_markdown(uri, before, after, reports)),
        "dagster/uri": MetadataValue.url(uri) if "://" in uri else MetadataValue.path(uri),
        **health_metadata(after),
    }
    for each in reports:
        metadata |= each.metadata
    return metadata


def maintenance_markdown(
    uri: str, before: TableHealth, after: TableHealth, reports: Sequence[StepReport]
) -> str:
    """The same as Markdown."""
    deeds = [f"- **{each.operation}**: {each.summary}" for each in reports]
    rows = [
        f"| {name} | {old} | {new} |"
        for (name, old), (_, new) in zip(_facts(before), _facts(after), strict=True)
    ]
    head = ["| | before | after |", "|---|---:|---:|"]
    return "\n".join([f"### `{uri}`", "", *(deeds or ["- nothing"]), "", *head, *rows])


def _facts(health: TableHealth) -> list[tuple[str, str]]:
    rows = "unknown" if health.num_records is None else f"{health.num_records:,}"
    return [
        ("version", str(health.version)),
        ("rows", rows),
        ("files", f"{health.num_files:,}"),
        ("size", spell_bytes(health.size_bytes)),
        ("average file", spell_bytes(health.average_file_bytes)),
        ("small files", f"{health.num_small_files:,}"),
        ("files with deleted rows", f"{health.num_files_with_deletions:,}"),
        ("deleted rows", f"{health.num_deleted_records:,}"),
        ("commits since checkpoint", f"{health.commits_since_checkpoint:,}"),
        ("damaged files of the log", f"{len(health.damaged_log_files):,}"),
    ]
