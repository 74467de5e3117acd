"""Data files of other writers, whose columns have another type than those of the table."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_delta import DeltaTable
from dagster_delta.errors import InvalidTable
from tests.conformance.engines import Engine
from tests.table.logs import PROTOCOL, add_file, encode
from tests.table.test_malformed_tables import column, metadata_of, schema_of


def table_of(root: Path, columns: dict[str, tuple[pa.Array, str]]) -> DeltaTable:
    """A table of one file: the values of each column in it, and the type of it in the table."""
    (root / "_delta_log").mkdir(parents=True)
    pq.write_table(
        pa.table({name: values for name, (values, _) in columns.items()}), root / "f.parquet"
    )
    fields = [column(data_type, name) for name, (_, data_type) in columns.items()]
    size = (root / "f.parquet").stat().st_size
    actions = (PROTOCOL, metadata_of(schema_of(*fields)), add_file("f.parquet", size=size))
    lines = [encode(action).strip() for action in actions]
    (root / "_delta_log" / f"{0:020}.json").write_bytes(b"\n".join(lines))
    return DeltaTable(str(root))


def test_unsigned_integers_are_read_where_the_column_has_them(
    engine: Engine, tmp_path: Path
) -> None:
    columns = {
        "a": (pa.array([200, 255], pa.uint8()), "short"),
        "b": (pa.array([60_000, 1], pa.uint16()), "integer"),
        "c": (pa.array([4_000_000_000, 1], pa.uint32()), "long"),
        "d": (pa.array([2**63 + 5, 1], pa.uint64()), "decimal(20,0)"),
        "e": (pa.array([200, 1], pa.uint8()), "double"),
    }
    table = table_of(tmp_path / "t", columns)
    assert engine.tuples(table) == [
        (200, 60_000, 4_000_000_000, Decimal(2**63 + 5), 200.0),
        (255, 1, 1, Decimal(1), 1.0),
    ]
    assert engine.tuples(table, "c", where="a < 255 AND d > 9") == [(4_000_000_000,)]


@pytest.mark.parametrize(
    ("values", "data_type"),
    [
        (pa.array([2**53 + 1]), "double"),
        (pa.array([2**24 + 1], pa.int32()), "float"),
        (pa.array([0.1]), "float"),
        (pa.array([1], pa.timestamp("ns", "UTC")), "timestamp"),
        (pa.array([2**31]), "integer"),
    ],
    ids=["long as double", "integer as float", "double as float", "nanoseconds", "long as integer"],
)
def test_values_that_the_column_would_cut_or_round_are_refused(
    values: pa.Array, data_type: str, engine: Engine, tmp_path: Path
) -> None:
    table = table_of(tmp_path / "t", {"v": (values, data_type)})
    # Spark raises its own error while it reads.
    kind: type[Exception] = InvalidTable if engine.session is None else Exception
    with pytest.raises(kind, match=r"where column v is of type|DATA_TYPE_MISMATCH") as found:
        engine.read(table)
    assert "f.parquet" in str(found.value)


def test_declared_nanoseconds_are_read_as_microseconds(engine: Engine, tmp_path: Path) -> None:
    columns = {
        "id": (pa.array([1, 2, 3]), "long"),
        "u": (pa.array([1_999, -1, None], pa.timestamp("ns", "UTC")), "timestamp_nanos"),
    }
    table = table_of(tmp_path / "t", columns)
    rows = engine.tuples(table)
    assert [row[0] for row in rows] == [1, 2, 3]
    assert [row[1] and row[1].microsecond for row in rows] == [1, 999_999, None]
    assert engine.tuples(table, "id", where="u < TIMESTAMP '1970-01-01 00:00:00Z'") == [(2,)]
