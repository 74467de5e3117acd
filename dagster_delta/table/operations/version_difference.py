"""What changes in a table that gets the rows, schema and properties of a version: of an older one
by RESTORE, of another table by CLONE or when a branch is published.

Spec: Add File and Remove File; Row Tracking; Domain Metadata; Transaction Identifiers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.evolution.plan_report import configuration_lines, schema_lines
from dagster_delta.protocol.features.row_tracking import (
    assign_row_ids,
    high_water_mark_domain,
    parse_high_water_mark,
)
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.replay import keys_of
from dagster_delta.protocol.values.arrow_columns import string_column
from dagster_delta.table.log.columns import total_bytes
from dagster_delta.table.operations.clustering import followed_clustering
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.transaction.file_actions import added_again, tombstones
from dagster_delta.table.transaction.transaction import Transaction

_NO_ID, _SEPARATOR = string_column(["", "\0"])


class FileDifference(NamedTuple):
    """What changes in the files of a table, each part as `Snapshot.live_files`."""

    entering: pa.Table
    """The files that the table gets."""
    renumbered: pa.Table
    """Files that it has, and that get other row ids."""
    leaving: pa.Table
    """The files that leave it."""

    @classmethod
    def between(cls, now: pa.Table, then: pa.Table) -> FileDifference:
        """What leads from the files `now` to those of `then`."""
        keys, now_keys = (keys_of(files["path"], files["deletion_vector"]) for files in (then, now))
        is_there = pc.is_in(keys, value_set=now_keys)
        is_same = pc.is_in(_with_ids(keys, then), value_set=_with_ids(now_keys, now))
        # Files that had no ids may have got some since.
        is_renumbered = pc.and_not(is_there, pc.or_(is_same, pc.is_null(then["base_row_id"])))
        is_leaving = pc.invert(pc.is_in(now_keys, value_set=keys))
        entering = then.filter(pc.invert(is_there))
        return cls(entering, then.filter(is_renumbered), now.filter(is_leaving))


def _with_ids(keys: pa.ChunkedArray, files: pa.Table) -> pa.ChunkedArray:
    ids = (
        pc.coalesce(files[name].cast("string"), _NO_ID)
        for name in ("base_row_id", "default_row_commit_version")
    )
    return pc.binary_join_element_wise(keys, *ids, _SEPARATOR)


class VersionDifference(msgspec.Struct, frozen=True, kw_only=True):
    """What changes in a table that gets the rows, schema and properties of a version."""

    before: Snapshot | None
    """The table now; None if it does not exist."""
    target: Snapshot
    """The version."""
    configuration: TableConfiguration
    """Protocol and metadata of the table afterwards."""
    files: FileDifference
    positions: Mapping[str, int]
    """The versions of applications that the table records with the rows."""

    @property
    def changes_anything(self) -> bool:
        """Whether there is anything to commit."""
        before = self.before
        return (
            before is None
            or self.configuration != before.configuration
            or any(changed.num_rows for changed in self.files)
            or bool(self.positions)
            or bool(followed_clustering(before, self.target))
        )

    def stage(self, transaction: Transaction, *, data_change: bool = True) -> None:
        """Add files, row ids, clustering and positions to a commit; the configuration is staged.
        `data_change` is False if the table has the same rows already, in other files.
        """
        domains = followed_clustering(self.before, self.target)
        adds = [
            *added_again(self.files.entering, data_change=data_change),
            *added_again(self.files.renumbered, data_change=False),
        ]
        if self.configuration.supports("rowTracking"):
            known = () if self.before is None else self.before.domain_metadata().values()
            before = parse_high_water_mark(known)
            highest = max(before, parse_high_water_mark(self.target.domain_metadata().values()))
            numbered, highest = assign_row_ids(adds, version=None, highest=highest)
            adds = [*numbered]
            if highest > before:
                domains += (high_water_mark_domain(highest),)
        else:
            adds = [
                msgspec.structs.replace(add, base_row_id=None, default_row_commit_version=None)
                for add in adds
            ]
        transaction.stage_domain(*domains)
        transaction.stage_removed(
            tombstones(self.files.leaving, transaction.clock(), data_change=data_change)
        )
        for app_id, version in self.positions.items():
            transaction.record_application(app_id, version)
        transaction.stage_readded(adds)

    def render(self, now: str, then: str, *notes: str) -> Iterator[str]:
        """Rows, files, bytes, properties and schema for people, as lines of Markdown. `now` and
        `then` name the table and the version; `notes` are further list items.
        """
        yield f"| | {now} | {then} | difference |"
        yield "|---|---:|---:|---:|"
        for name, attribute in (
            ("rows", "num_records"),
            ("files", "num_files"),
            ("bytes", "size_bytes"),
        ):
            here = 0 if self.before is None else getattr(self.before, attribute)
            there = getattr(self.target, attribute)
            change = "unknown" if None in (here, there) else f"{there - here:+,}"
            yield f"| {name} | {_spell(here)} | {_spell(there)} | {change} |"
        yield ""
        for files, what in ((self.files.entering, "come in"), (self.files.leaving, "leave")):
            rows, size = _spell(_count_rows(files)), total_bytes(files)
            yield f"- {files.num_rows:,} files with {rows} rows ({size:,} bytes) {what}"
        yield from notes
        if self.before is not None:
            yield from configuration_lines(self.before.configuration, self.configuration)
            yield from schema_lines(self.before.schema, self.configuration.schema)


def _count_rows(files: pa.Table) -> int | None:
    """Live rows of some files; None if the statistics of one do not say it."""
    total = 0
    for file in added_again(files):
        if file.num_records is None:
            return None
        hidden = 0 if file.deletion_vector is None else file.deletion_vector.cardinality
        total += file.num_records - hidden
    return total


def _spell(count: int | None) -> str:
    return "unknown" if count is None else f"{count:,}"
