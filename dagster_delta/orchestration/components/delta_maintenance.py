"""`DeltaMaintenanceComponent`: declared maintenance of tables."""

from __future__ import annotations

from typing import Any

import dagster as dg
from pydantic import Field

from dagster_delta.orchestration.components.delta_component import (
    DeltaAttributes,
    DeltaComponent,
    MaintenanceConfigField,
    StorageField,
)
from dagster_delta.orchestration.components.scaffolders import DeltaMaintenanceScaffolder
from dagster_delta.orchestration.maintenance.jobs import (
    delta_maintenance_job,
    delta_maintenance_schedule,
)
from dagster_delta.orchestration.maintenance.operations import DeltaMaintenanceConfig


class MaintenanceOptions(DeltaAttributes):
    """The maintenance of tables, and its schedule."""

    name: str = "delta_maintenance"
    """Name of the job; with a cron schedule, name of the schedule, whose job is called
    <name>_job."""
    cron_schedule: str | None = Field(default=None, examples=["0 3 * * *"])
    """Cron expression of the schedule. Default: no schedule, only a job for the Launchpad."""
    execution_timezone: str | None = None
    """Time zone of the cron schedule; UTC by default."""
    default_status: dg.DefaultScheduleStatus = dg.DefaultScheduleStatus.STOPPED
    """Whether the schedule is initially running."""
    config: MaintenanceConfigField = DeltaMaintenanceConfig()
    spark: str | None = None
    """Key of the SparkSessionResource, for the engine spark."""
    description: str | None = None
    """Description of the job."""
    tags: dict[str, str] = Field(default={})
    """Tags of the job."""

    def definitions(self, **job_options: Any) -> dg.Definitions:
        """The job of some tables, or the schedule with its job."""
        given = {"spark": self.spark, "description": self.description, "tags": self.tags}
        job_options |= {name: value for name, value in given.items() if value}
        job_options["config"] = self.config
        if self.cron_schedule is None:
            return dg.Definitions(jobs=[delta_maintenance_job(self.name, **job_options)])
        for name in ("execution_timezone", "default_status"):
            job_options[name] = getattr(self, name)
        schedule = delta_maintenance_schedule(self.name, self.cron_schedule, **job_options)
        return dg.Definitions(schedules=[schedule])


@dg.scaffold_with(DeltaMaintenanceScaffolder)
class DeltaMaintenanceComponent(DeltaComponent, MaintenanceOptions):
    """A job that optimizes, vacuums and checkpoints tables, one step per table, and its schedule.

    For the tables below a root, use `maintenance` of `DeltaLakeComponent`.

    Examples:
        type: dagster_delta.DeltaMaintenanceComponent
        attributes:
          name: nightly
          cron_schedule: 0 3 * * *
          tables:
            raw/flights: s3://lake/raw/flights
          config:
            vacuum:
              dry_run: false
    """

    tables: dict[str, str] = Field(examples=[{"raw/flights": "s3://lake/raw/flights"}])
    """Tables by name, with their locations."""
    storage_options: StorageField = None

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002
        """The job, or the schedule with its job.

        Raises:
            InvalidArgument: there are no tables, or two have the same name.
        """
        return self.definitions(tables=self.tables, storage_options=self.storage_options or {})
