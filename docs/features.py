"""Write `docs/features.md` from the code: what is read, what is written, and what shows it.

`python -m docs.features` writes the page; a test fails when it is out of date or names no test.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dagster_delta.protocol.table_features import TABLE_FEATURES, TableFeature

__all__ = ["OPERATIONS", "Operation", "render"]

PAGE = Path(__file__).with_name("features.md")


@dataclass(frozen=True, slots=True)
class Operation:
    """Something a user does with a table, and the tests that show it on each engine."""

    what: str
    arrow: str | None
    """Test on the embedded engine as `path::function`, or None where it does not do it."""
    spark: str | None
    """Test on Spark, or None where it does not do it."""


OPERATIONS: tuple[Operation, ...] = ()


def render() -> str:
    """The whole page."""
    features = "\n".join(_feature_row(each) for each in TABLE_FEATURES)
    operations = "\n".join(_operation_row(each) for each in OPERATIONS)
    return f"""# What works today

Generated from the code by `make docs`; a test keeps it true.

## Table features

A table is refused, by name and before a byte is written, when it uses a feature that says no.
"if unused" means that a table which lists the feature without using it is written all the same.

| Feature | What it is | Read | Write |
|---|---|---|---|
{features}

## Operations

Each yes links to the test that shows it.

| Operation | Arrow (embedded) | Spark |
|---|---|---|
{operations}
"""


def _feature_row(feature: TableFeature) -> str:
    names = " / ".join(f"`{name}`" for name in (feature.name, *feature.aliases))
    read = "yes" if feature.can_read else "no"
    write = "yes" if feature.can_write else "if unused" if feature.find_use else "no"
    return f"| {names} | {feature.description} | {read} | {write} |"


def _operation_row(operation: Operation) -> str:
    return f"| {operation.what} | {_proof(operation.arrow)} | {_proof(operation.spark)} |"


def _proof(test: str | None) -> str:
    return f"[yes](../{test.split('::')[0]})" if test else "no"


if __name__ == "__main__":
    PAGE.write_text(render())
