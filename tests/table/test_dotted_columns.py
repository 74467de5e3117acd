"""A column `a.b` beside a struct a with a field b: two columns with one dotted path."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable

N = 10_000
VALUES = {
    "distinct": pa.array(range(N)),
    "zeros": pa.array([0] * N),
    "texts": pa.array([f"text {number * 7919}" for number in range(N)]),
}


@pytest.mark.parametrize("inside", VALUES)
@pytest.mark.parametrize("dotted", VALUES)
def test_column_beside_a_struct_of_its_path_is_written_filtered_and_changed(
    tmp_path: Path, dotted: str, inside: str
) -> None:
    struct = pa.StructArray.from_arrays([VALUES[inside]], names=["b"])
    rows = pa.table({"id": range(N), "a.b": VALUES[dotted], "a": struct})
    table = DeltaTable(str(tmp_path / "t"), must_exist=False)
    table.append(rows)
    read = table.snapshot().scan().to_arrow()
    assert read.to_pylist() == rows.to_pylist()
    for name, column in (("`a.b`", dotted), ("a.b", inside)):
        value = VALUES[column][17].as_py()
        literal = f"'{value}'" if isinstance(value, str) else value
        found = table.snapshot().scan(["id"], f"{name} = {literal}").to_arrow()["id"].to_pylist()
        assert found == [n for n in range(N) if VALUES[column][n].as_py() == value]
    table.update({"`a.b`": "NULL"}, where="id = 3")
    changed = table.snapshot().scan(["a.b", "a"], "id = 3").to_arrow().to_pylist()
    assert changed == [{"a.b": None, "a": {"b": VALUES[inside][3].as_py()}}]


def test_column_beside_the_elements_of_a_list_is_written(tmp_path: Path) -> None:
    rows = pa.table({"l.list.element": VALUES["texts"], "l": [[n] for n in range(N)]})
    table = DeltaTable(str(tmp_path / "t"), must_exist=False)
    table.append(rows)
    assert table.snapshot().scan().to_arrow().to_pylist() == rows.to_pylist()
