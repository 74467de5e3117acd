"""A sensor on tables and its target, declared in a `defs.yaml`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import dagster as dg
from pydantic import ConfigDict, Field

from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.components.delta_component import documented, documented_texts
from dagster_delta.orchestration.sensors.sensors import delta_change_feed_sensor, delta_table_sensor
from dagster_delta.orchestration.storage_options import StorageOptions

_OF_THE_DECLARATION = frozenset({"name", "assets", "job", "change_feed", "enabled"})
"""Fields that `delta_table_sensor` does not have, or has by another name."""


class SensorOptions(dg.Model, dg.Resolvable):
    """Which commits to include, and what they run."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    name: str = Field(description="Name of the sensor.")
    assets: Annotated[
        str | list[str] | None,
        documented(
            "Assets to materialize, in Dagster's asset selection syntax.",
            examples=["group:reports", 'key:"reports/daily"+'],
        ),
    ] = None
    job: Annotated[str | None, documented("Alternative to assets: name of a job to run.")] = None
    change_feed: Annotated[
        bool,
        documented("Require the change data feed: a commit that it did not record is an error."),
    ] = False
    start_from: Annotated[
        Literal["latest", "earliest"] | int,
        documented("Where the first tick starts: latest, earliest or a version."),
    ] = "latest"
    operations: Annotated[
        list[str] | None,
        documented(
            "Only these operations. Operations that change no rows count only if named here.",
            examples=[["WRITE", "MERGE"]],
        ),
    ] = None
    partitions: Annotated[
        dict[str, list[str | None]] | None,
        documented_texts(
            "Only these values of partition columns; null is a value.",
            dict[str, list[str | int | None]],
            examples=[{"country": ["AT", "CH"]}],
        ),
    ] = None
    columns: Annotated[list[str], documented("Only commits that change one of these columns.")] = (
        Field(default=[])
    )
    minimum_rows: Annotated[
        int | None, documented("Wait until pending commits have changed this many rows …")
    ] = None
    minimum_age_seconds: Annotated[
        float | None, documented("… or until the oldest of them was seen this many seconds ago.")
    ] = None
    partitions_def: Annotated[
        dg.PartitionsDefinition[Any] | None,
        documented(
            "Partitions definition of the target: one run per changed partition.",
            examples=["{{ dg.DailyPartitionsDefinition(start_date='2024-01-01') }}"],
            template=True,
        ),
    ] = None
    partition_expr: Annotated[
        str | dict[str, str] | None,
        documented(
            "Partition column of the table that maps to the partition key, or a mapping from "
            "dimension to column."
        ),
    ] = None
    run_tags: Annotated[
        dict[str, str],
        documented_texts("Additional tags of every run.", dict[str, str | int | float | bool]),
    ] = Field(default={})
    max_commits_per_tick: Annotated[
        int, documented("Maximum number of commits that one tick reads per table.")
    ] = 100
    max_runs_per_tick: Annotated[
        int, documented("Maximum number of runs that one tick requests.")
    ] = 100
    minimum_interval_seconds: Annotated[
        int | None, documented("Minimum number of seconds between two ticks.")
    ] = None
    enabled: Annotated[bool, documented("Whether the sensor is initially running.")] = False
    description: Annotated[str | None, documented("Description of the sensor.")] = None


def build_sensor(
    options: SensorOptions,
    *,
    tables: str | list[str],
    storage_options: StorageOptions | None,
    **further: Any,
) -> dg.SensorDefinition:
    """The sensor."""
    if options.assets is not None and options.job is not None:
        raise InvalidArgument(
            f"Sensor {options.name} runs either assets or a job: give one of them"
        )
    given = {
        name: value
        for name in SensorOptions.model_fields
        if name not in _OF_THE_DECLARATION and (value := getattr(options, name)) is not None
    }
    if options.assets is not None:
        given["target"] = dg.AssetSelection.from_coercible(options.assets)
    if options.job is not None:
        given["job_name"] = options.job
    if options.enabled:
        given["default_status"] = dg.DefaultSensorStatus.RUNNING
    # The fields have the names of the options, which type checkers cannot verify.
    all_options: Any = {**given, **further, "storage_options": storage_options or {}}
    make = delta_change_feed_sensor if options.change_feed else delta_table_sensor
    return make(options.name, tables, **all_options)
