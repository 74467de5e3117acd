"""Write `docs/reference.md` from the code: every public name with the first lines of its docstring.

`python -m docs.reference` writes the page; a test fails when it is out of date or lacks a name.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

import dagster_delta
from dagster_delta import errors
from dagster_delta.cached_property import cached_property
from dagster_delta.orchestration.maintenance.jobs import MaintenanceJobOptions
from dagster_delta.orchestration.sensors.sensors import DeltaSensorOptions

__all__ = ["PAGE", "SECTIONS", "Section", "render"]

PAGE = Path(__file__).with_name("reference.md")


@dataclass(frozen=True, slots=True)
class Section:
    """Public names that belong together."""

    title: str
    names: tuple[str, ...]
    """Listed in a table, each with the summary of its docstring."""
    options: tuple[str, ...] = ()
    """Of those, the configurable classes whose fields are listed as well."""
    methods: tuple[str, ...] = ()
    """Of those, the classes whose methods are listed as well."""
    keywords: tuple[type, ...] = ()
    """Typed dictionaries of the keyword arguments that several of them take."""


SECTIONS = (
    Section(
        "IO manager and resources",
        (
            "DeltaIOManager",
            "DeltaTableResource",
            "SparkSessionResource",
            "TypeHandler",
            "TableInput",
            "MergeConfig",
            "MergeOperationsConfig",
            "MergeType",
        ),
        options=("DeltaIOManager", "DeltaTableResource", "SparkSessionResource", "MergeConfig"),
    ),
    Section(
        "Storage options",
        (
            "StorageOptions",
            "LocalStorageOptions",
            "S3StorageOptions",
            "GcsStorageOptions",
            "AzureStorageOptions",
            "FsspecStorageOptions",
        ),
        options=("S3StorageOptions", "GcsStorageOptions", "AzureStorageOptions"),
    ),
    Section(
        "Assets, checks and lineage",
        (
            "delta_change_feed_asset",
            "ChangeFeedConfig",
            "UpstreamChanges",
            "delta_sql_asset",
            "sql_column_lineage",
            "UpstreamColumns",
            "observable_delta_asset",
            "delta_asset_checks",
            "check_definitions",
        ),
    ),
    Section(
        "Sensors",
        ("delta_table_sensor", "delta_change_feed_sensor", "TableChanges", "DeltaCommitRange"),
        keywords=(DeltaSensorOptions,),
    ),
    Section(
        "Jobs, schedules and ops",
        (
            "delta_maintenance_job",
            "delta_maintenance_schedule",
            "delta_health_asset",
            "delta_restore_job",
            "delta_clone_job",
            "delta_schema_change_job",
            "delta_table_pool",
            "optimize_op",
            "vacuum_op",
            "checkpoint_op",
            "clean_log_op",
            "restore_op",
            "clone_op",
            "history_op",
            "DeltaMaintenanceConfig",
            "OptimizeConfig",
            "VacuumConfig",
            "CheckpointConfig",
            "CleanLogConfig",
            "DeltaSchemaChangeConfig",
            "SchemaChangeKind",
        ),
        options=(
            "OptimizeConfig",
            "VacuumConfig",
            "CheckpointConfig",
            "CleanLogConfig",
            "DeltaSchemaChangeConfig",
        ),
        keywords=(MaintenanceJobOptions,),
    ),
    Section(
        "Components",
        (
            "DeltaTableComponent",
            "DeltaLakeComponent",
            "DeltaSensorComponent",
            "DeltaMaintenanceComponent",
        ),
    ),
    Section(
        "Tables",
        (
            "DeltaTable",
            "Snapshot",
            "Scan",
            "ChangeDataFeed",
            "Transaction",
            "CommitResult",
            "ConflictRetries",
            "OptimizeResult",
            "VacuumResult",
            "TableHealth",
            "Column",
            "Identity",
        ),
        methods=("DeltaTable", "Snapshot", "Scan", "ChangeDataFeed", "Transaction"),
    ),
    Section(
        "Spark",
        ("register_delta_log", "delta_sink", "DeltaSink", "ship_package"),
    ),
    Section(
        "Variants",
        (
            "variants_from_json",
            "variants_from_python",
            "variants_to_json",
            "variants_to_python",
        ),
    ),
    Section("Errors", ("DeltaError",)),
)


def render() -> str:
    """The whole page."""
    sections = "\n".join(_section(each) for each in SECTIONS)
    return f"""# Reference

Every public name, as `from dagster_delta import …` has it. Generated from the code by `make docs`.
Arguments, results and errors are in the docstrings: `help(dagster_delta.DeltaTable.append)`.

{sections}
`DeltaError` and its subclasses are in `dagster_delta.errors`:

```text
{_error_tree()}
```
"""


def _section(section: Section) -> str:
    values = {name: getattr(dagster_delta, name) for name in section.names}
    parts = [f"## {section.title}", _table(("Name", ""), _rows(values))]
    for name in section.methods:
        parts += [f"### Methods of `{name}`", _table(("Method", ""), _rows(_methods(values[name])))]
    for name in section.options:
        parts += [f"### Fields of `{name}`", _fields(values[name])]
    for keywords in section.keywords:
        parts += [f"### `{keywords.__name__}`", _table(("Keyword", ""), _keywords(keywords))]
    return "\n\n".join(parts) + "\n"


def _rows(values: dict[str, Any]) -> list[tuple[str, ...]]:
    return [(f"`{name}`", _summary(value)) for name, value in values.items()]


def _methods(owner: type) -> dict[str, Any]:
    """The public methods and properties, in alphabetical order; inherited ones are its own too."""
    return {
        name: value
        for name, value in inspect.getmembers(owner)
        if not name.startswith("_")
        and (callable(value) or isinstance(value, property | cached_property))
        and inspect.getdoc(value)
    }


def _fields(model: type[BaseModel]) -> str:
    rows = [
        (f"`{field.alias or name}`", _default(field), field.description or "")
        for name, field in model.model_fields.items()
        if field.description
    ]
    return _table(("Field", "Default", ""), rows)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return f"`{type(value).__name__}()`"
    if isinstance(value, Enum):
        return f"`{value.name}`"
    return "" if value is None else f"`{value!r}`"


def _keywords(keywords: type) -> list[tuple[str, ...]]:
    """The keys of a typed dictionary with the literals that describe them in its source."""
    lines = inspect.getsource(keywords).split('"""')[2:]
    names = [part.rpartition(":")[0].split()[-1] for part in lines[:-1:2]]
    return [
        (f"`{name}`", " ".join(text.split())) for name, text in zip(names, lines[1::2], strict=True)
    ]


def _summary(value: object) -> str:
    text = inspect.getdoc(value) or getattr(value, "description", None) or ""
    return " ".join(text.partition("\n\n")[0].split())


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *(map(_cell, row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _error_tree() -> str:
    drawn = inspect.getdoc(errors) or ""
    return inspect.cleandoc(drawn.partition("\n\n")[2].partition("\n\nEach carries")[0])


if __name__ == "__main__":
    PAGE.write_text(render())
