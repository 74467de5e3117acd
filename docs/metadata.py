"""Write `docs/metadata.md` from the code: what the Dagster UI shows of tables, key by key.

`python -m docs.metadata` writes the page; a test fails when it is out of date, or lacks a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dagster_delta.orchestration.metadata_keys import METADATA_KEYS

PAGE = Path(__file__).with_name("metadata.md")

SPARK = {
    "spark/application_id": "The application of the Spark session.",
    "spark/history_server": "Link to the application in the History Server, if "
    "`history_server_url` of `SparkSessionResource` is set.",
    "spark/seconds": "Seconds of the work.",
    "spark/jobs, spark/stages, spark/tasks, spark/failed_tasks": "Jobs, stages and tasks.",
    "spark/input_bytes, spark/shuffle_read_bytes, spark/shuffle_write_bytes, spark/spilled_bytes": (
        "Bytes read, shuffled and spilled; only if the Spark UI is enabled."
    ),
    "spark/task_seconds": "Seconds that tasks ran, in total; only if the Spark UI is enabled.",
    "spark/output_bytes": "Bytes of the data files of the commit.",
    "spark/plan": "The physical plan, without secrets.",
}

MAINTENANCE = {
    "delta/report": "The table before and after the run.",
    "delta/average_file_bytes, delta/small_files, delta/partitions, delta/partition_skew": "The "
    "shape of the table after the run: the mean size of its data files, how many are small, its "
    "partitions, and the largest of them divided by the mean one.",
    "delta/files_with_deletions, delta/deleted_rows": "Data files with deletion vectors, and the "
    "rows that these hide.",
    "delta/commits_since_checkpoint, delta/damaged_log_files": "Commits after the last checkpoint, "
    "and damaged files of the log.",
    "delta/optimize_files_added, delta/optimize_files_removed": "Data files of OPTIMIZE.",
    "delta/optimize_bytes_added, delta/optimize_bytes_removed": "Their bytes.",
    "delta/optimize_versions": "Versions that OPTIMIZE committed.",
    "delta/vacuum_dry_run, delta/clean_log_dry_run": "Whether nothing was deleted.",
    "delta/vacuum_files, delta/vacuum_bytes, delta/vacuum_first_files": "What VACUUM deleted, or "
    "would delete, with the first names.",
    "delta/clean_log_files, delta/clean_log_bytes, delta/earliest_version": "What log clean-up "
    "deleted, and the oldest version that can be read.",
    "delta/checkpoint_version": "Version of the checkpoint.",
    "delta/restored_version, delta/restored_from_version": "The version that was restored, and the "
    "one before.",
    "delta/restored_files, delta/removed_files": "Data files that a restore added and removed.",
    "delta/difference": "Rows, files, bytes and columns of both versions of a restore.",
    "delta/clone_target, delta/clone_version, delta/cloned_version": "Location and version of the "
    "clone, and the version that was cloned.",
    "delta/copied_files, delta/copied_bytes": "What a deep clone copied.",
    "delta/fsck_missing_files, delta/fsck_removed_files, delta/fsck_first_files": "Files that "
    "storage does not have, how many of them were removed from the table, and the first names.",
    "delta/reorg_files_added, delta/reorg_files_removed": "Data files of REORG.",
    "delta/schema_change, delta/dry_run": "The plan of a schema change, and whether it was only "
    "planned.",
}

SENSORS = {
    "delta/from_version, delta/to_version": "Run tags: the commits that a run is for.",
    "delta/log_position": "Tag of an observation: how far the log was read.",
    "delta/operations, delta/table_uri, delta/table_id": "Run tags: the operations of those "
    "commits, the table, and its id.",
    "delta/operation_metrics": "Metrics of a commit, by their names in the log.",
    "delta/partition_column": "Tag of the columns that the table is partitioned by.",
}


HEALTH = {
    "delta/health": "The page: what is due, and why.",
    "delta/num_tables, delta/num_due_tables": "Tables, and those of them that need maintenance.",
    "delta/num_files, delta/num_small_files, delta/size_bytes": "Their files and bytes.",
    "delta/tables": "A line for each table.",
    "delta/figures": "The figures of this run, with which the next one compares.",
}


def render() -> str:
    """The whole page."""
    tables = [(key.name, key.meaning, key.shown_on) for key in METADATA_KEYS]
    rows = "\n".join(f"| `{name}` | {meaning} | {on} |" for name, meaning, on in tables)
    return f"""# Metadata in the Dagster UI

Generated from the code by `make docs`. Keys appear in this order; counters that are 0 are left out.

| Key | Meaning | Shown on |
|---|---|---|
{rows}

`delta/input/<name>` has rows for values in memory (Arrow, pandas, polars). Those of Spark
DataFrames, lazy frames, readers and relations are not counted, as they are read later; files and
bytes are those that remain after the filter of the input, before that of the query.

## Spark

{_table(SPARK)}

## Maintenance and schema changes

{_table(MAINTENANCE)}

## The health of all tables

{_table(HEALTH)}

## Sensors, checks and tags

{_table(SENSORS)}
"""


def _table(meanings: Mapping[str, str]) -> str:
    rows = [
        f"| {', '.join(f'`{name}`' for name in names.split(', '))} | {meaning} |"
        for names, meaning in meanings.items()
    ]
    return "\n".join(["| Key | Meaning |", "|---|---|", *rows])


if __name__ == "__main__":
    PAGE.write_text(render())
