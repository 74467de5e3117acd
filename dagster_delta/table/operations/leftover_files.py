"""The files under a table's root that no version in its log refers to, by age.

They are left by writers that were killed, by other engines and by people. VACUUM deletes those with
ordinary names, and VACUUM LITE none of them.

Spec: Add File and Remove File; Add CDC File.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.clock import Clock
from dagster_delta.protocol.log.commit_file import decode_commit
from dagster_delta.protocol.log.paths import LOG_DIRECTORY
from dagster_delta.protocol.values.arrow_columns import (
    boolean_column,
    integer_column,
    string_column,
)
from dagster_delta.protocol.values.arrow_values import integer_scalar
from dagster_delta.table.log.columns import total_bytes
from dagster_delta.table.log.reader import list_log, read_versions
from dagster_delta.table.operations.vacuum_plan import ListedFiles, ReferencedFiles, is_vacuumed
from dagster_delta.table.read.snapshot import Snapshot

_HOUR_MS = 60 * 60 * 1000
_AGES = (
    ("less than an hour", _HOUR_MS),
    ("less than a day", 24 * _HOUR_MS),
    ("less than a week", 7 * 24 * _HOUR_MS),
    ("less than 30 days", 30 * 24 * _HOUR_MS),
    ("30 days or more", 2**62),
)


@dataclass(frozen=True, slots=True)
class UnreferencedFiles:
    """The files that no version in the log of a table refers to."""

    files: pa.Table
    """`pa.Table` with `path` (decoded, relative to the root), `size_bytes`, `modified_ms` and
    `is_vacuumed`: whether VACUUM deletes it once it is older than the retention. Files with hidden
    names are never deleted."""
    by_age: pa.Table
    """`pa.Table` with one row per range of ages: `age`, `num_files` and `size_bytes`."""


def find_unreferenced_files(snapshot: Snapshot, *, clock: Clock) -> UnreferencedFiles:
    """List the root of the table and compare it with every version in the log."""
    now_ms = clock()
    referenced = _logged_files(snapshot)
    is_ours = is_vacuumed(snapshot.configuration.physical_partition_columns)
    listed = ListedFiles(
        snapshot.store,
        lambda path: not path.startswith(f"{LOG_DIRECTORY}/"),
        lambda directory: directory != LOG_DIRECTORY,
        lambda paths: referenced.mask(_without_checksums(paths)),
    )
    # Files of commits made during the listing are referenced, too.
    latest = snapshot.update()
    newer = _logged_files(latest) if latest.version != snapshot.version else referenced
    found = listed.describe(
        lambda paths: newer.mask(_without_checksums(paths)), before_ms=2**62
    ).sort_by("path")
    vacuumed = boolean_column([is_ours(path) for path in found["path"].to_pylist()])
    return UnreferencedFiles(
        found.append_column("is_vacuumed", vacuumed), _by_age(found, now_ms=now_ms)
    )


def _logged_files(snapshot: Snapshot) -> ReferencedFiles:
    referenced = ReferencedFiles()
    columns = ["path", "deletion_vector"]
    for batch in snapshot.file_batches(columns):
        referenced.add(batch.files)
    for removed in snapshot.tombstone_batches(now_ms=0):
        referenced.add(removed.select(columns))
    listing = list_log(snapshot.store, end=snapshot.version)
    for commit in read_versions(snapshot.store, listing, sorted(listing.commits)):
        actions = decode_commit(commit.data, version=commit.version)
        referenced.add_paths(file.path for file in actions.cdc)
        referenced.add_actions(actions.adds)
        referenced.add_actions(actions.removes)
    return referenced


def _without_checksums(paths: pa.Array) -> pa.Array:
    """The paths, with those of Hadoop's checksum files replaced by the files they belong to."""
    return pc.replace_substring_regex(paths, r"(^|/)\.([^/]+)\.crc$", r"\1\2")


def _by_age(files: pa.Table, *, now_ms: int) -> pa.Table:
    ages = pc.subtract(integer_scalar(now_ms), files["modified_ms"])
    counts, sizes = [], []
    lower = -(2**62)
    for _, upper in _AGES:
        is_in = pc.and_(
            pc.greater_equal(ages, integer_scalar(lower)), pc.less(ages, integer_scalar(upper))
        )
        some = files.filter(is_in)
        counts.append(some.num_rows)
        sizes.append(total_bytes(some))
        lower = upper
    columns = [string_column([name for name, _ in _AGES])]
    columns += [integer_column(counts), integer_column(sizes)]
    return pa.Table.from_arrays(columns, names=["age", "num_files", "size_bytes"])
