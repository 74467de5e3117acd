"""Calls in the words of deltalake and delta-spark are answered with ours."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable

ROWS = pa.table({"a": [1]})


@pytest.fixture
def table(tmp_path: Path) -> Any:
    made = DeltaTable.create(tmp_path / "t", ROWS.schema)
    made.append(ROWS)
    return made


@pytest.mark.parametrize(
    ("call", "ours"),
    [
        (lambda t: t.delete(predicate="a = 1"), "write where"),
        (lambda t: t.update(updates={"a": "1"}), "write set"),
        (lambda t: t.update(new_values={"a": 1}), "write set"),
        (lambda t: t.update({"a": "1"}, predicate="a = 1"), "write where"),
        (lambda t: t.merge(source=ROWS, predicate="s.a = t.a", source_alias="s"), "write on"),
        (lambda t: t.merge(ROWS, "s.a = t.a").when_matched_update(updates={}), "write set"),
        (lambda t: t.merge(ROWS, "s.a = t.a").when_matched_delete(predicate="a"), "condition"),
        (lambda t: t.merge(ROWS, "s.a = t.a").when_not_matched_insert(updates={}), "values"),
        (lambda t: t.optimize.compact(), r"is optimize\(\)"),
        (lambda t: t.alter.add_columns([]), r"is add_column\("),
        (lambda t: t.alter.set_table_properties({}), r"is set_properties\("),
        (lambda t: t.optimize.z_order(["a"]), "zorder_by"),
        (lambda t: t.optimize(partition_filters=[("a", "=", 1)]), "write where"),
        (lambda t: t.vacuum(enforce_retention_duration=False), "write enforce_retention"),
        (lambda t: t.restore(target=1), "version or timestamp"),
        (lambda t: t.overwrite(ROWS, predicate="a = 1"), "write where"),
        (
            lambda t: type(t)(table_uri=t.uri),
            r"DeltaTable\(\) has no parameter 'table_uri': write uri",
        ),
        (lambda t: t.append(ROWS, commit_properties=1), "write commit_info"),
        (lambda t: type(t).create("x", ROWS.schema, configuration={}), "write properties"),
    ],
)
def test_a_keyword_of_deltalake_names_ours(
    table: Any, call: Callable[[Any], object], ours: str
) -> None:
    with pytest.raises(TypeError, match=ours):
        call(table)
    assert table.refresh().version == 1


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("to_pandas", r"snapshot\(\).scan\(\).to_pandas\(\)"),
        ("to_pyarrow_table", r"to_arrow\(\)"),
        ("files", r"snapshot\(\).files\(\)"),
        ("load_as_version", "version="),
        ("scan", r"snapshot\(\).scan\(\)"),
        ("is_deltatable", "is_delta_table"),
        ("toDF", "to_spark"),
    ],
)
def test_a_method_of_deltalake_names_ours(table: Any, name: str, ours: str) -> None:
    with pytest.raises(AttributeError, match=ours):
        getattr(table, name)
    assert not hasattr(table, name)


def test_what_the_answers_name_is_there(table: Any) -> None:
    assert table.snapshot().scan().to_pandas()["a"].tolist() == [1]
    assert table.snapshot().files()["path"].to_pylist()
    assert table.snapshot().num_records == 1
    assert table.metadata().configuration == {}
    assert table.optimize(zorder_by=["a"]).versions is not None


def test_other_attributes_are_just_missing(table: Any) -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'nonsense'$"):
        _ = table.nonsense


def test_the_error_of_a_property_is_not_hidden() -> None:
    class Broken(DeltaTable):
        @property
        def uri(self) -> str:
            return self.missing_within  # type: ignore[attr-defined]

    with pytest.raises(AttributeError, match="missing_within"):
        _ = Broken.__new__(Broken).uri


def test_a_handle_can_be_copied(table: Any) -> None:
    assert copy.copy(table).version() == 1


def test_a_static_method_of_deltalake_names_ours() -> None:
    with pytest.raises(AttributeError, match="is_delta_table"):
        DeltaTable.is_deltatable("lake")  # type: ignore[attr-defined]
    assert not hasattr(DeltaTable, "is_deltatable")
