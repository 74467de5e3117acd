"""What `import dagster_delta` offers, and what it costs."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import dagster_delta


def loaded_after(statement: str) -> set[str]:
    script = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("name", dagster_delta.__all__)
def test_every_public_name_is_importable(name: str) -> None:
    assert getattr(dagster_delta, name) is not None


def test_every_public_name_says_where_it_lives() -> None:
    assert {*dagster_delta._HOMES, "__version__"} == set(dagster_delta.__all__)
    assert dir(dagster_delta) == sorted(dagster_delta.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        importlib.import_module("dagster_delta").no_such_name  # noqa: B018


def test_a_name_of_another_package_shows_the_nearest_and_the_page() -> None:
    with pytest.raises(
        AttributeError, match=r"nearest name is 'DeltaIOManager'; docs/migration.md"
    ):
        _ = dagster_delta.DeltaLakePyarrowIOManager


def test_importing_the_package_imports_nothing_heavy() -> None:
    loaded = loaded_after("import dagster_delta")
    assert not {"dagster", "pyspark", "pyarrow", "duckdb", "fsspec", "sqlglot"} & loaded


def test_a_table_needs_neither_dagster_nor_spark() -> None:
    loaded = loaded_after("from dagster_delta import DeltaTable")
    heavy = {"dagster", "pyspark", "duckdb", "fsspec", "sqlglot", "pandas", "polars"}
    assert not heavy & loaded
    assert "pyarrow.dataset" not in loaded


def test_writing_and_reading_a_table_needs_neither_dagster_nor_spark() -> None:
    loaded = loaded_after(
        "import pyarrow as pa\n"
        "from dagster_delta import DeltaTable\n"
        "table = DeltaTable('memory://names', must_exist=False)\n"
        "table.append(pa.table({'id': [1]}))\n"
        "assert table.snapshot().num_records == 1"
    )
    assert not {"dagster", "pyspark", "duckdb", "sqlglot", "polars"} & loaded
