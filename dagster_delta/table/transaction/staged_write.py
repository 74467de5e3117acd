"""A write before its commit, for audits: the table as it would be, and the rows that are new.

Both are snapshots made of the files that are written but in no commit; nothing is copied, and both
engines read them. They are valid until the write ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import msgspec

if TYPE_CHECKING:
    from dagster_delta.table.read.snapshot import Snapshot


class StagedWrite(msgspec.Struct, frozen=True):
    """What a write is about to commit."""

    table: Snapshot
    """The table as it would be, at the version that the commit would have."""
    rows: Snapshot
    """The rows of the new data files alone. An update or a merge into a table without deletion
    vectors also has the unchanged rows of the files that it rewrites."""
    before: Snapshot | None
    """The table as it is; None if the commit would create it."""


AuditOfWrite: TypeAlias = Callable[[StagedWrite], Mapping[str, object] | None]
"""Called before each attempt to commit a write, and again if others have changed rows meanwhile. An
error that it raises leaves the table as it is; what it returns is added to the commitInfo."""
