"""Audits of writes before their commit, on every engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable, Expectation
from dagster_delta.errors import ConcurrentAppend
from dagster_delta.table.transaction.staged_write import StagedWrite
from tests.conformance.engines import Engine


class Refused(Exception):
    """What an audit raises."""


class Recorder:
    """An audit that notes what it sees, as the engine reads it."""

    def __init__(self, engine: Engine, *, refuses: bool = False, then: Any = None) -> None:
        self.engine, self.refuses, self.then = engine, refuses, then
        self.table: list[list[int]] = []
        self.rows: list[list[int]] = []

    def __call__(self, staged: StagedWrite) -> dict[str, object]:
        self.table.append(self._ids(staged.table))
        self.rows.append(self._ids(staged.rows))
        before = -1 if staged.before is None else staged.before.version
        assert staged.table.version == before + 1
        if self.then is not None:
            then, self.then = self.then, None
            then()
        if self.refuses:
            raise Refused
        return {"audits": len(self.table)}

    def _ids(self, snapshot: Any) -> list[int]:
        found = self.engine.read(snapshot.scan(["id"]))
        return sorted(found["id"].to_pylist())


def ids_of(table: DeltaTable) -> list[int]:
    found = DeltaTable(table.uri).snapshot().scan(["id"]).to_arrow()
    return sorted(found["id"].to_pylist())


def files_of(table: DeltaTable) -> set[str]:
    return {
        path.name for path in Path(table.uri).rglob("*.parquet") if "_delta_log" not in str(path)
    }


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "day": [number % 3 for number in ids]})


def test_an_audit_sees_the_new_rows_and_the_table_as_it_would_be(
    table: DeltaTable, engine: Engine
) -> None:
    audit = Recorder(engine)
    table.append(engine.rows(rows(1, 2)), audit=audit, partition_by=["day"])
    table.append(engine.rows(rows(3)), audit=audit)
    table.overwrite(engine.rows(rows(4, 7)), where="day = 1", audit=audit)
    table.overwrite(engine.rows(rows(9)), audit=audit)
    assert audit.rows == [[1, 2], [3], [4, 7], [9]]
    assert audit.table == [[1, 2], [1, 2, 3], [2, 3, 4, 7], [9]]
    assert ids_of(table) == [9]
    assert [entry.commit_info["audits"] for entry in table.history()] == [4, 3, 2, 1]


@pytest.mark.parametrize("vectors", ["true", "false"])
def test_an_audit_sees_a_merge(table: DeltaTable, engine: Engine, vectors: str) -> None:
    table.append(rows(1, 2, 3), properties={"delta.enableDeletionVectors": vectors})
    audit = Recorder(engine)
    merge = table.merge(engine.rows(rows(2, 4)), "t.id = s.id", audit=audit)
    merge.when_matched_delete().when_not_matched_insert_all().execute()
    assert audit.table == [[1, 3, 4]]
    assert audit.rows == [[4] if vectors == "true" else [1, 3, 4]]
    assert ids_of(table) == [1, 3, 4]


def test_a_refused_write_leaves_the_table_and_no_file(table: DeltaTable, engine: Engine) -> None:
    refuses = Recorder(engine, refuses=True)
    with pytest.raises(Refused):
        table.append(engine.rows(rows(1)), audit=refuses)
    assert not DeltaTable.is_delta_table(table.uri)
    assert files_of(table) == set()
    table.append(rows(1, 2), partition_by=["day"])
    kept = files_of(table)
    with pytest.raises(Refused):
        table.append(engine.rows(rows(3)), audit=refuses)
    with pytest.raises(Refused):
        table.overwrite(engine.rows(rows(4)), where="day = 1", audit=refuses)
    merge = table.merge(engine.rows(rows(2, 5)), "t.id = s.id", audit=refuses)
    with pytest.raises(Refused):
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
    assert files_of(table) == kept
    assert DeltaTable(table.uri).version() == 0
    assert ids_of(table) == [1, 2]


def test_an_audit_sees_the_table_again_after_rows_of_others(
    table: DeltaTable, engine: Engine
) -> None:
    table.append(rows(1))

    def others(*ids: int) -> Any:
        return lambda: DeltaTable(table.uri).append(rows(*ids))

    audit = Recorder(engine, then=others(10))
    result = table.append(engine.rows(rows(2)), audit=audit)
    assert audit.table == [[1, 2], [1, 2, 10]]
    assert audit.rows == [[2], [2]]
    assert result.attempts == 2
    assert len(files_of(table)) == 3
    audit = Recorder(engine, then=others(11))
    merge = table.merge(engine.rows(rows(3)), "t.id = s.id", audit=audit)
    merge.when_not_matched_insert_all().execute()
    assert audit.table == [[1, 2, 3, 10], [1, 2, 3, 10, 11]]
    assert ids_of(table) == [1, 2, 3, 10, 11]
    assert len(files_of(table)) == 5
    audit = Recorder(engine, then=others(12))
    with pytest.raises(ConcurrentAppend, match="audited"):
        table.overwrite(
            engine.rows(rows(4)), where="day = 9 OR id = 4", audit=audit, on_conflict="fail"
        )
    assert len(files_of(table)) == 6


def test_an_audit_sees_what_expectations_leave(table: DeltaTable, engine: Engine) -> None:
    audit = Recorder(engine)
    table.append(
        engine.rows(rows(1, 2, 3)), audit=audit, expectations=[Expectation("a", "id < 3", "drop")]
    )
    assert audit.rows == [[1, 2]]


def test_an_audit_sees_tables_with_row_tracking_and_column_mapping(
    table: DeltaTable, engine: Engine
) -> None:
    properties = {
        "delta.enableRowTracking": "true",
        "delta.columnMapping.mode": "name",
        "delta.enableInCommitTimestamps": "true",
        "delta.enableChangeDataFeed": "true",
    }
    audit = Recorder(engine)
    table.append(engine.rows(rows(1)), audit=audit, properties=properties)
    table.append(engine.rows(rows(2)), audit=audit)
    assert audit.table == [[1], [1, 2]]
    assert audit.rows == [[1], [2]]
