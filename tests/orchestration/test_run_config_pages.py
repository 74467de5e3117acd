"""The run config on the guide pages is what the jobs take: valid, complete, with their defaults."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from dagster_delta import (
    DeltaMaintenanceConfig,
    DeltaSchemaChangeConfig,
    delta_clone_job,
    delta_maintenance_job,
    delta_restore_job,
    delta_schema_change_job,
    vacuum_op,
)
from dagster_delta.orchestration.maintenance.operations import DeltaCloneConfig, DeltaRestoreConfig

DOCS = Path(__file__).parents[2] / "docs"
TABLES = {"flights": "s3://lake/flights", "weather": "s3://lake/weather"}


def config(page: str, title: str) -> dict[str, Any]:
    (text,) = re.findall(
        rf'```yaml title="{re.escape(title)}"\n(.*?)```', (DOCS / page).read_text(), re.DOTALL
    )
    found: dict[str, Any] = yaml.safe_load(text)
    return found


@pytest.mark.parametrize(
    ("page", "title", "job", "model", "examples"),
    [
        (
            "maintenance.md",
            "maintenance.yaml",
            delta_maintenance_job,
            DeltaMaintenanceConfig,
            set(),
        ),
        (
            "maintenance.md",
            "restore.yaml",
            delta_restore_job,
            DeltaRestoreConfig,
            {"table", "version"},
        ),
        ("maintenance.md", "clone.yaml", delta_clone_job, DeltaCloneConfig, {"table", "target"}),
        (
            "schema-changes.md",
            "all-options.yaml",
            delta_schema_change_job,
            DeltaSchemaChangeConfig,
            {"table", "statement"},
        ),
    ],
)
def test_a_page_has_all_options_of_a_job_with_their_defaults(
    page: str, title: str, job: Any, model: type[dg.Config], examples: set[str]
) -> None:
    given = config(page, title)
    assert dg.validate_run_config(job(tables=TABLES), given)
    assert sorted(given) == sorted(model.model_fields)
    for name, field in model.model_fields.items():
        if name in examples:
            continue
        default = field.default
        if isinstance(default, dg.Config):
            default = default.model_dump()
        assert given[name] == getattr(default, "name", default), name


def test_a_page_has_the_config_of_an_op() -> None:
    @dg.job
    def vacuums() -> None:
        vacuum_op()

    assert dg.validate_run_config(vacuums, config("maintenance.md", "vacuum.yaml"))
