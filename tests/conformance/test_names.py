"""Which names of columns are one name: those that delta-spark takes for one."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dagster_delta
from dagster_delta import DeltaTable
from dagster_delta.errors import DeltaError, InvalidTable, SchemaMismatch
from dagster_delta.protocol.schema import fold_name
from tests.conformance.engines import Engine

DISTINCT = [
    ("Maße", "Masse"),
    ("ſtart", "start"),
    ("σ", "ς"),
    ("ﬁx", "fix"),
    ("İ", "i"),
    ("ı", "I"),
]
"""Names that delta-spark 4.4.0 creates a table with, side by side."""
EQUAL = [("Größe", "GRÖSSE".replace("SS", "ẞ")), ("ΟΔΟΣ", "οδος"), ("\u212a", "k"), ("Ä", "ä")]
"""Names that it refuses as one."""


@pytest.mark.parametrize(("one", "other"), DISTINCT)
def test_names_that_differ_in_lower_case_are_two_columns(
    table: DeltaTable, engine: Engine, one: str, other: str
) -> None:
    table.append(engine.rows(pa.table({"id": [1], one: [10]})))
    with pytest.raises(SchemaMismatch):
        table.append(engine.rows(pa.table({"id": [2], other: [77]})))
    table.append(engine.rows(pa.table({"id": [2], other: [77]})), schema_mode="merge")
    rows = sorted(engine.read(table).to_pylist(), key=lambda row: row["id"])
    assert rows == [{"id": 1, one: 10, other: None}, {"id": 2, one: None, other: 77}]


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_names_that_are_equal_in_lower_case_are_one_column(
    table: DeltaTable, one: str, other: str
) -> None:
    with pytest.raises(DeltaError):
        table.append(pa.table({one: [1], other: [2]}))
    table.append(pa.table({"id": [1], one: [10]}))
    table.append(pa.table({"id": [2], other: [20]}))
    assert sorted(table.snapshot().scan().to_arrow()[one].to_pylist()) == [10, 20]


@pytest.mark.parametrize("nested", [False, True])
def test_a_data_file_with_two_columns_of_one_name_is_refused(
    table: DeltaTable, engine: Engine, tmp_path: Path, nested: bool
) -> None:
    written = pa.table({"id": [1, 2]})
    both = pa.table({"Id": [1, 2], "ID": [30, 40]})
    if nested:
        written = pa.table({"s": written.to_struct_array()})
        both = pa.table({"s": both.to_struct_array()})
    table.append(written)
    (file,) = (tmp_path / "table").glob("*.parquet")
    pq.write_table(both, file)
    resize(tmp_path / "table", file.stat().st_size)
    with pytest.raises(engine_errors(engine), match=r"(?i)duplicate|2 columns for column id"):
        engine.read(DeltaTable(table.uri))


def resize(root: Path, size_bytes: int) -> None:
    """Log another size of the only file."""
    for checksum in (root / "_delta_log").glob("*.crc"):
        checksum.unlink()
    commit = root / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            action["add"]["size"] = size_bytes
    commit.write_text("".join(json.dumps(action) + "\n" for action in actions))


def engine_errors(engine: Engine) -> type[Exception]:
    """Spark itself refuses such a file, when it reads it."""
    return InvalidTable if engine.name == "arrow" else Exception


def test_only_one_function_compares_names() -> None:
    assert fold_name("Maße") != fold_name("MASSE")
    sources = Path(dagster_delta.__file__).parent.rglob("*.py")
    assert [path.name for path in sources if ".casefold(" in path.read_text()] == []
