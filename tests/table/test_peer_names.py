"""Calls in the words of deltalake and delta-spark are errors."""

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
    "call",
    [
        lambda t: t.delete(predicate="a = 1"),
        lambda t: t.update(updates={"a": "1"}),
        lambda t: t.merge(source=ROWS, predicate="s.a = t.a", source_alias="s"),
        lambda t: t.merge(ROWS, "s.a = t.a").when_matched_update(updates={}),
        lambda t: t.optimize(partition_filters=[("a", "=", 1)]),
        lambda t: t.vacuum(enforce_retention_duration=False),
        lambda t: t.restore(target=1),
        lambda t: t.overwrite(ROWS, predicate="a = 1"),
        lambda t: type(t)(table_uri=t.uri),
        lambda t: t.append(ROWS, commit_properties=1),
        lambda t: type(t).create("x", ROWS.schema, configuration={}),
    ],
)
def test_a_keyword_of_deltalake_is_refused_and_changes_nothing(
    table: Any, call: Callable[[Any], object]
) -> None:
    with pytest.raises(TypeError):
        call(table)
    assert table.refresh().version == 1


@pytest.mark.parametrize("name", ["to_pandas", "files", "toDF", "nonsense"])
def test_a_method_of_deltalake_names_the_page(table: Any, name: str) -> None:
    with pytest.raises(AttributeError, match=rf"no attribute '{name}'; docs/migration.md"):
        getattr(table, name)
    assert not hasattr(table, name)


def test_the_error_of_a_property_is_not_hidden() -> None:
    class Broken(DeltaTable):
        @property
        def uri(self) -> str:
            return self.missing_within  # type: ignore[attr-defined]

    with pytest.raises(AttributeError, match="missing_within"):
        _ = Broken.__new__(Broken).uri


def test_a_handle_can_be_copied(table: Any) -> None:
    assert copy.copy(table).version() == 1
