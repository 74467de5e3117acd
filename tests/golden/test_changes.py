"""The rows of a version and the changes of the next one are the rows of the next: tables of others."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dagster_delta import DeltaTable
from dagster_delta.errors import DataFileMissing, InvalidTable, LogGap, VersionNotFound
from tests.families import family
from tests.golden.answers import READABLE, TEMPLATE, rows_of, table_path

VERSIONS = 12
# Written by hand: commits that have change files alone, with rows that no data file holds.
_ANNOUNCED_ONLY = {"krs__cdf-table-simple", "krs__cdf-table-update-ops"}
_UNKNOWN_PARTITION = "does not say in which partition"
_EXAMPLES = ("dat__cdf", "rs__cdf-table-with-cdc-and-dvs", "golden__type-widening")
NAMES = [name for name in READABLE if name not in {TEMPLATE, *_ANNOUNCED_ONLY}]

pytestmark = pytest.mark.usefixtures("golden_tables")


@pytest.mark.parametrize("name", family(NAMES, *_EXAMPLES) if NAMES else [])
def test_rows_and_changes_give_the_next_rows(name: str) -> None:
    table = DeltaTable(table_path(name))
    before: pa.Table | None = None
    compared = 0
    for version in range(max(0, table.version() - VERSIONS), table.version() + 1):
        after = readable_rows(table, version)
        if before is not None and after is not None and before.schema == after.schema:
            try:
                changes = table.changes(version, version).to_arrow()
            except InvalidTable as error:
                if _UNKNOWN_PARTITION not in str(error):
                    raise
            else:
                assert apply_changes(before, changes) == rows_of(after), version
                compared += 1
        before = after
    if not compared:
        pytest.skip("no two versions with rows of one schema")


def apply_changes(before: pa.Table, changes: pa.Table) -> Counter[str]:
    """The rows after the changes."""
    found = rows_of(before)
    came = pc.is_in(changes["_change_type"], pa.array(["insert", "update_postimage"]))
    found.update(rows_of(changes.filter(came).select(before.column_names)))
    found.subtract(rows_of(changes.filter(pc.invert(came)).select(before.column_names)))
    assert min(found.values(), default=0) >= 0
    return +found


def readable_rows(table: DeltaTable, version: int) -> pa.Table | None:
    """The rows of a version; None where the log or files of it are gone."""
    try:
        return table.snapshot(version).scan().to_arrow()
    except (DataFileMissing, LogGap, VersionNotFound):
        return None
