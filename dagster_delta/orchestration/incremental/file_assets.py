"""Assets of files that others put into a landing zone, each loaded once, and their sensor."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast, get_args

import dagster as dg

from dagster_delta.errors import InvalidArgument
from dagster_delta.evolution.column_definition import schema_of_types
from dagster_delta.orchestration.incremental.file_loads import ChangedFiles, FileLoad, plan_load
from dagster_delta.orchestration.incremental.landing_files import FileFormat, LandingZone
from dagster_delta.orchestration.io.asset_options import AssetOptions, read_asset_options
from dagster_delta.orchestration.io.io_manager import delta_io_manager
from dagster_delta.orchestration.io.merge_config import match_on
from dagster_delta.orchestration.metadata_keys import counted
from dagster_delta.orchestration.storage_options import StorageOptions, plain_options
from dagster_delta.protocol.values.arrow_schema import to_arrow_schema

LoadMode: TypeAlias = Literal["append", "merge", "overwrite"]


def delta_files_asset(
    name: str,
    source: str,
    *,
    mode: LoadMode = "append",
    keys: Sequence[str] = (),
    storage_options: StorageOptions | Mapping[str, object] | None = None,
    format: FileFormat | None = None,  # noqa: A002  the word for it
    columns: Mapping[str, str] | None = None,
    delimiter: str = ",",
    encoding: str = "utf-8",
    changed_files: ChangedFiles = "skip",
    minimum_age_seconds: float = 0,
    io_manager_key: str = "io_manager",
    **asset_options: Any,
) -> dg.AssetsDefinition:
    """An asset of files that others put somewhere; each run loads the files that are new.

    Each file is loaded once: its location is recorded in the commit that has its rows, also if a
    run crashes, is repeated, or runs at the same time as another one. If one new file cannot be
    read, none is loaded. Rows stream through memory; with `merge` the new rows are held in it.

    Parquet files have types. In CSV and JSON files a column has the type in `columns`, else that of
    the column of the table, else one that is inferred.

    Args:
        name: of the asset.
        source: a file, a directory, or a pattern: `s3://landing/flights/*.csv`, `/in/**/*.json`.
            Names that begin with `_` or `.` do not match.
        mode: `append` adds the rows; `merge` updates and inserts rows by `keys`, and the last row
            with a key counts, in the order in which files were modified; `overwrite` replaces all
            rows of the table by those of the new files.
        keys: columns that identify rows; for the mode `merge`.
        storage_options: storage options for `source`.
        format: `parquet`, `csv` with a header line, or `json` with one object per line. Default: by
            the extension of each file; `.gz` and the like may follow.
        columns: the columns to load with their types in Spark SQL. Default: all columns of the
            files; new ones follow the `schema_mode` of the asset.
        delimiter: of CSV files.
        encoding: of the text in CSV and JSON files, such as `latin-1` or `utf-16`.
        changed_files: whether a file whose time of modification differs from that of the loaded
            one is loaded again.
        minimum_age_seconds: younger files are left for the next run.
        io_manager_key: of a DeltaIOManager, which writes the table.
        asset_options: of `dg.asset`: key_prefix, metadata, description, …

    Raises:
        InvalidArgument: the arguments are inconsistent, or a type is unknown.

    Examples:
        delta_files_asset("flights", "s3://landing/flights/*.csv", key_prefix=["raw"])
    """
    if len(delimiter) != 1:
        raise InvalidArgument(f"the delimiter of {name} is one character, not {delimiter!r}")
    # A misspelled choice must not load rows a second time.
    for option, value, choices in (
        ("mode", mode, get_args(LoadMode)),
        ("format", format, (None, *get_args(FileFormat))),
        ("changed_files", changed_files, get_args(ChangedFiles)),
    ):
        if value not in choices:
            allowed = ", ".join(map(repr, choices))
            raise InvalidArgument(f"the {option} of {name} is one of {allowed}, not {value!r}")
    if bool(keys) != (mode == "merge"):
        raise InvalidArgument(f"{name} has the mode {mode}, and keys are for the mode merge alone")
    if asset_options.get("partitions_def") is not None:
        raise InvalidArgument(
            f"{name} has partitions_def, and its files are loaded once, whatever the partition: "
            "leave it out; partition_by in its metadata partitions the table"
        )
    metadata = {**(asset_options.pop("metadata", None) or {}), "mode": mode}
    if keys:
        metadata["merge_config"] = {"merge_type": "upsert", "predicate": match_on(keys)}
    read_asset_options(metadata, AssetOptions(), asset=name)
    zone = LandingZone(
        source,
        plain_options(storage_options),
        format,
        None if columns is None else to_arrow_schema(schema_of_types(columns)),
        delimiter,
        minimum_age_seconds,
        tuple(keys),
        encoding,
    )

    def load(context: dg.AssetExecutionContext) -> FileLoad:
        manager = delta_io_manager(context.resources, io_manager_key, asset=name)
        target = manager.table_of(context.asset_key, metadata)
        found = plan_load(zone.files(), target, changed_files=changed_files, keys=tuple(keys))
        if found.changed:
            context.log.warning(
                f"not loaded again: {counted(len(found.changed), 'file')} modified after the first "
                f'load, such as {found.changed[0]}: changed_files="load" loads them'
            )
        if found.new.waiting:
            context.log.warning(found.new.waits_for)
        return found

    # The annotations are text here, which Dagster cannot resolve.
    load.__annotations__ = {"context": dg.AssetExecutionContext}
    define = dg.asset(
        name=name,
        io_manager_key=io_manager_key,
        required_resource_keys={io_manager_key},
        metadata=metadata,
        **{"kinds": {"deltalake"}, **asset_options},
    )
    return cast("dg.AssetsDefinition", define(load))


def delta_files_sensor(
    name: str,
    source: str,
    *,
    target: Any,  # noqa: ANN401  as of `dg.sensor`
    storage_options: StorageOptions | Mapping[str, object] | None = None,
    minimum_age_seconds: float = 0,
    minimum_interval_seconds: int | None = None,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.SensorDefinition:
    """A sensor that requests a run when files were added to a landing zone, or changed.

    A tick lists the files. A run that fails is not repeated before the files change again, unless
    Dagster retries runs.

    Args:
        name: of the sensor.
        source: as of `delta_files_asset`.
        target: what it runs: the asset.
        storage_options: storage options for `source`.
        minimum_age_seconds: as of `delta_files_asset`; the same value there.
        minimum_interval_seconds: between two ticks.
        default_status: whether the sensor runs from the start.
    """
    zone = LandingZone(
        source, plain_options(storage_options), minimum_age_seconds=minimum_age_seconds
    )

    @dg.sensor(
        name=name,
        target=target,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
    )
    def look(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        found = zone.files()
        files = found.files
        if not files:
            return dg.SkipReason(found.waits_for or f"No file matches {source}")
        listed = "\n".join(sorted(f"{file.path} {file.modified_ms}" for file in files))
        digest = hashlib.sha256(listed.encode()).hexdigest()
        if digest == context.cursor:
            return dg.SkipReason(f"{counted(len(files), 'file')} of {source}: none has changed")
        context.update_cursor(digest)
        return dg.RunRequest()

    return look
