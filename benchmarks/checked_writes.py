"""What checks and feeds cost beside the least that they have to do: an audit that passes beside a
write and a scan of the new rows, and the changes of an append without a feed beside reading the
added files.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks._rows import batches
from benchmarks.harness import Case, Peer, main, ours

_BAD = "price < 0 OR quantity < 0"
_BEFORE = 1000


def _nothing(directory: Path, size: int) -> None:
    """Rows are made by the peers, before their time is taken."""


def _bad_rows(snapshot: Any) -> int:
    """The scan of both peers."""
    found: int = snapshot.scan(columns=["id"], where=_BAD).to_arrow().num_rows
    return found


def _append(*, is_audited: bool) -> Peer:
    def prepared(directory: Path, size: int) -> Callable[[], object]:
        import pyarrow as pa

        from dagster_delta import DeltaTable

        target, data = directory / f"audited-{is_audited}", pa.Table.from_batches(batches(size))
        shutil.rmtree(target, ignore_errors=True)
        table = DeltaTable.create(str(target), data.schema)

        def audit(staged: Any) -> None:
            assert _bad_rows(staged.rows) == 0

        def run() -> int:
            if is_audited:
                return table.append(data, audit=audit).version
            version = table.append(data).version
            assert _bad_rows(table.snapshot()) == 0
            return version

        return run

    return prepared


def _table_with_append(directory: Path, size: int) -> None:
    import pyarrow as pa

    from dagster_delta import DeltaTable

    for name, rows in (("table", _BEFORE), ("appended", 0)):
        data = pa.Table.from_batches(batches(size))
        table = DeltaTable.create(str(directory / name), data.schema)
        if rows:
            table.append(data.slice(0, rows))
        table.append(data)


def _changes(table: Any) -> int:
    return sum(batch.num_rows for batch in table.changes(2).to_batches())


def _rows(table: Any) -> int:
    return sum(batch.num_rows for batch in table.snapshot().scan().to_batches())


CASES = {
    "audit": Case(
        "append {size} rows with an audit that scans them",
        5_000_000,
        _nothing,
        {"an audit": _append(is_audited=True), "append, then scan": _append(is_audited=False)},
        rounds=5,
    ),
    "feed": Case(
        "stream the changes of an append of {size} rows to a table without a feed",
        5_000_000,
        _table_with_append,
        {"changes": ours(_changes), "reading the added files": ours(_rows, "appended")},
        rounds=5,
    ),
}

if __spec__ is not None:
    main(__name__, __spec__.name, CASES)
