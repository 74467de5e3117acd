"""Whether a commit has changed the values of some columns, according to its change data.

Spec: Change Data Files.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.errors import DataFileMissing
from dagster_delta.protocol.features.change_data import CHANGE_TYPE_COLUMN
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.log.commit_summary import CommitSummary
from dagster_delta.table.read.change_data_feed import ChangeDataFeed
from dagster_delta.table.read.scan import resolve_columns
from dagster_delta.table.read.snapshot import Snapshot

_MAX_ROWS = 1_000_000
"""Maximum number of row changes to compare; a commit with more counts as changing every column."""

_COUNT = "__count"


def changes_columns(store: ObjectStore, commit: CommitSummary, columns: Sequence[str]) -> bool:
    """False if a commit only updated rows, and these columns are unchanged in all of them.

    Inserted or deleted rows change every column; so do updates that the change data feed does not
    record. The log does not pair the rows before and after an update: columns count as unchanged if
    the rows can be paired so that none of them differs.
    """
    if not commit.change_files:
        return True
    snapshot = Snapshot.load(store, version=commit.version)
    wanted = resolve_columns(snapshot.schema, columns)
    feed = ChangeDataFeed(snapshot, commit.version, [*snapshot.schema.names, CHANGE_TYPE_COLUMN])
    try:
        rows = _read_some(feed)
    except DataFileMissing:
        return True
    if rows is None:
        return True
    types = rows[CHANGE_TYPE_COLUMN]
    if not pc.all(pc.match_substring(types, "update_"), min_count=0).as_py():
        return True
    signs = pc.if_else(pc.equal(types, "update_postimage"), 1, -1)
    rows = rows.append_column(_COUNT, signs.cast(pa.int64()))
    same = [name for name in snapshot.schema.names if _is_balanced(rows, [name])]
    return not (set(wanted) <= set(same) and _is_balanced(rows, same))


def _read_some(feed: ChangeDataFeed) -> pa.Table | None:
    """The rows as a `pa.Table`, or None if there are too many."""
    batches, count = [], 0
    reader = feed.to_batches()
    for batch in reader:
        count += batch.num_rows
        if count > _MAX_ROWS:
            return None
        batches.append(batch)
    return pa.Table.from_batches(batches, reader.schema)


def _is_balanced(rows: pa.Table, names: Sequence[str]) -> bool:
    """Whether each combination of values in these columns occurs equally often before and after."""
    if any(pa.types.is_nested(rows.schema.field(name).type) for name in names):
        # Values of nested types cannot be grouped.
        return False
    counted = rows.group_by(list(names)).aggregate([(_COUNT, "sum")])
    balance = counted[f"{_COUNT}_sum"]
    return bool(pc.all(pc.equal(balance, 0), min_count=0).as_py())
