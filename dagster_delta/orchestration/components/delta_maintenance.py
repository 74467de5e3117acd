"""`DeltaMaintenanceComponent`: declared maintenance of tables."""

from __future__ import annotations

from typing import Annotated, Any

import dagster as dg
from pydantic import Field

from dagster_delta.orchestration.components.delta_component import (
    DeltaAttributes,
    DeltaComponent,
    MaintenanceConfigField,
    StorageField,
    documented,
)
from dagster_delta.orchestration.components.scaffolders import DeltaMaintenanceScaffolder
from dagster_delta.orchestration.maintenance.config import DeltaMaintenanceConfig
from dagster_delta.orchestration.maintenance.jobs import (
    delta_maintenance_job,
    delta_maintenance_schedule,
)


class MaintenanceOptions(DeltaAttributes):
    """The maintenance of tables, and its schedule."""

    name: Annotated[
        str,
        documented(
            "Name of the job; with a cron schedule, name of the schedule, whose job is called "
            "<name>_job."
        ),
    ] = "delta_maintenance"
    cron_schedule: Annotated[
        str | None,
        documented(
            "Cron expression of the schedule. Default: no schedule, only a job for the Launchpad.",
            examples=["0 3 * * *"],
        ),
    ] = None
    execution_timezone: Annotated[
        str | None, documented("Time zone of the cron schedule; UTC by default.")
    ] = None
    enabled: Annotated[bool, documented("Whether the schedule is initially running.")] = False
    config: MaintenanceConfigField = DeltaMaintenanceConfig()
    spark: Annotated[
        str | None,
        documented("Key of the SparkSessionResource, for the engine spark."),
    ] = None
    description: Annotated[str | None, documented("Description of the job.")] = None
    tags: Annotated[dict[str, str], documented("Tags of the job.")] = Field(default={})


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

    tables: dict[str, str] = Field(
        description="Tables by name, with their locations.",
        examples=[{"raw/flights": "s3://lake/raw/flights"}],
    )
    storage_options: StorageField = None

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002
        """The job, or the schedule with its job.

        Raises:
            InvalidArgument: there are no tables, or two have the same name.
        """
        return build_maintenance(
            self, tables=self.tables, storage_options=self.storage_options or {}
        )


def build_maintenance(options: MaintenanceOptions, **job_options: Any) -> dg.Definitions:
    """The job, or the schedule with its job."""
    given = {"spark": options.spark, "description": options.description, "tags": options.tags}
    job_options |= {name: value for name, value in given.items() if value}
    if options.cron_schedule is None:
        job = delta_maintenance_job(options.name, config=options.config, **job_options)
        return dg.Definitions(jobs=[job])
    status = dg.DefaultScheduleStatus
    schedule = delta_maintenance_schedule(
        options.name,
        options.cron_schedule,
        config=options.config,
        execution_timezone=options.execution_timezone,
        default_status=status.RUNNING if options.enabled else status.STOPPED,
        **job_options,
    )
    return dg.Definitions(schedules=[schedule])
