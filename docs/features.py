"""Write `docs/features.md` from the code: what is read, what is written, and what shows it.

`python -m docs.features` writes the page; a test fails when it is out of date or names no test.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dagster_delta.protocol.features.registry import TABLE_FEATURES, TableFeature
from dagster_delta.protocol.known_properties import KNOWN_PROPERTIES, KnownProperty

PAGE = Path(__file__).with_name("features.md")


@dataclass(frozen=True, slots=True)
class Operation:
    """Something a user does with a table, and the tests that show it on each engine."""

    what: str
    arrow: str | None
    """Test on the embedded engine as `path::function`, or None where it does not do it."""
    spark: str | None
    """Test on Spark, or None where it does not do it."""


def _on_both(what: str, test: str) -> Operation:
    """One that the same test shows on each engine."""
    return Operation(what, test, test)


OPERATIONS: tuple[Operation, ...] = (
    _on_both(
        "Read every golden table, or reject it by name",
        "tests/conformance/test_golden_tables.py::test_a_full_scan_gives_the_expected_rows",
    ),
    Operation(
        "Time travel by version",
        "tests/conformance/test_golden_tables.py::test_time_travel_gives_the_rows_of_each_version",
        "tests/conformance/test_golden_tables.py::test_a_full_scan_gives_the_expected_rows",
    ),
    _on_both(
        "Time travel by timestamp, including in-commit timestamps",
        "tests/table/test_time_travel.py::test_in_commit_timestamps_count_instead_of_file_times",
    ),
    Operation(
        "Projection and Spark SQL filters, with partition pruning and data skipping",
        "tests/table/test_scan.py::test_a_pruned_scan_of_a_real_table_loses_no_row",
        "tests/engines/test_spark_reading.py::test_both_engines_prune_the_same_plan",
    ),
    Operation(
        "Tables of many millions of files: Spark replays and prunes the log, and the driver "
        "collects only the remaining files, or none",
        None,
        "tests/engines/test_spark_log_planning.py::"
        "test_rows_are_the_same_and_no_file_of_the_checkpoint_is_decoded_here",
    ),
    Operation(
        "Change and maintain tables of many millions of files in bounded memory: the log is "
        "streamed in batches, and only matching files are kept",
        "tests/table/test_large_tables.py::test_a_change_of_a_large_table_is_that_of_a_small_one",
        "tests/engines/test_spark_log_planning.py::"
        "test_a_change_on_spark_decodes_no_file_of_the_checkpoint_here",
    ),
    Operation(
        "Read deletion vectors",
        "tests/reference/test_delta_spark.py::test_deletion_vectors_by_delta_spark_are_read",
        "tests/engines/test_spark_reading.py::test_deleted_rows_are_gone_at_every_density",
    ),
    Operation(
        "Read variants, shredded or not",
        "tests/engines/test_shredded_variants_spark.py::"
        "test_any_value_under_any_shredding_says_what_it_says_in_spark",
        "tests/engines/test_shredded_variants_spark.py::"
        "test_tables_of_others_say_what_they_say_in_spark",
    ),
    _on_both(
        "Write, update and validate variants, also in tables with the preview feature",
        "tests/reference/test_variants_delta_spark.py::test_delta_spark_reads_and_writes_on",
    ),
    _on_both(
        "Variant functions in SQL: `parse_json`, `variant_get`, `is_variant_null` and their "
        "`try_` forms",
        "tests/sql/test_variant_sql.py::test_what_is_computed_is_what_spark_computes",
    ),
    _on_both(
        "Spark SQL without Spark: operators, casts and functions proved equal, "
        "`current_timestamp()`, intervals, and what looks into arrays and maps included",
        "tests/sql/test_sql_against_spark.py::test_whitelisted_expressions_give_what_spark_gives",
    ),
    _on_both(
        "Materialize partition columns in the data files (`materializePartitionColumns`)",
        "tests/reference/test_table_features_delta_spark.py::"
        "test_partition_columns_stand_in_the_files_too",
    ),
    Operation(
        "Column mapping by name and by id, at every nesting level",
        "tests/reference/test_delta_spark.py::test_delta_spark_reads_what_we_wrote",
        "tests/engines/test_spark_reading.py::"
        "test_mapped_columns_keep_their_values_when_nested_fields_are_selected",
    ),
    Operation(
        "Read tables with widened types",
        "tests/reference/test_delta_spark.py::test_stable_type_widening_by_delta_spark_is_read",
        "tests/conformance/test_golden_tables.py::test_a_full_scan_gives_the_expected_rows",
    ),
    Operation(
        "Create a table",
        "tests/table/test_delta_table.py::test_the_protocol_is_the_lowest_that_will_do",
        "tests/conformance/test_writes.py::test_an_append_creates_the_table",
    ),
    Operation(
        "Append, with ANSI store assignment",
        "tests/reference/test_delta_spark.py::test_delta_spark_appends_to_our_table_and_we_read_it",
        "tests/engines/test_spark_writing.py::test_delta_spark_reads_every_type",
    ),
    Operation(
        "Overwrite the whole table",
        "tests/table/test_overwrite.py::test_a_whole_overwrite_leaves_the_new_rows_alone",
        "tests/conformance/test_writes.py::"
        "test_a_table_may_be_overwritten_with_what_is_read_from_it",
    ),
    Operation(
        "Overwrite by predicate, with every new row checked against it",
        "tests/table/test_overwrite.py::test_rows_outside_the_predicate_are_refused_with_examples",
        "tests/conformance/test_writes.py::test_rows_outside_the_predicate_are_refused",
    ),
    _on_both(
        "Dynamic partition overwrite",
        "tests/conformance/test_writes.py::test_dynamic_replaces_the_partitions_that_have_new_rows",
    ),
    Operation(
        "Enforce NOT NULL, invariants and CHECK constraints",
        "tests/table/test_append.py::test_invariants_and_checks_are_enforced",
        "tests/engines/test_spark_writing.py::test_a_row_that_breaks_a_constraint_is_shown",
    ),
    Operation(
        "Enforce the lengths of VARCHAR(n) and CHAR(n) that Spark declared, of columns and of the "
        "fields of structs",
        "tests/table/test_text_limits.py::test_limits_of_the_fields_of_structs_bind_too",
        "tests/table/test_text_limits.py::test_lengths_that_delta_spark_declared_bind_both_engines",
    ),
    Operation(
        "Generated columns and column defaults: filled in where the data omits them, verified "
        "otherwise",
        "tests/table/test_column_values.py::test_an_append_fills_every_column_that_the_data_lack",
        "tests/reference/test_column_values_delta_spark.py::"
        "test_what_only_spark_computes_is_computed_by_spark",
    ),
    Operation(
        "Identity columns: assigned by append and overwrite, and continued by delta-spark",
        "tests/reference/test_column_values_delta_spark.py::"
        "test_we_write_the_table_of_delta_spark_and_it_goes_on",
        "tests/reference/test_column_values_delta_spark.py::"
        "test_tasks_number_rows_without_meeting_or_passing_the_end",
    ),
    Operation(
        "Identity columns: assigned to the rows that a merge inserts",
        "tests/table/test_column_values.py::"
        "test_a_merge_fills_the_rows_it_inserts_and_follows_up_on_those_it_updates",
        "tests/table/test_spark_changes.py::test_a_merge_numbers_the_rows_it_inserts_on_spark",
    ),
    Operation(
        "Filters on a column prune partitions generated from it",
        "tests/table/test_column_values.py::"
        "test_a_filter_on_a_base_column_reads_the_partitions_generated_from_it_alone",
        "tests/table/test_spark_writes.py::"
        "test_a_filter_on_a_base_column_skips_partitions_for_spark_too",
    ),
    Operation(
        'Add columns and widen types on write (`schema_mode="merge"`)',
        "tests/table/test_append.py::"
        "test_widening_on_write_changes_the_type_and_old_files_read_as_the_new_one",
        "tests/conformance/test_writes.py::test_new_columns_merge_into_the_table",
    ),
    Operation(
        'Widen types on write without adding columns (`schema_mode="widen"`)',
        "tests/table/test_append.py::test_widen_takes_the_wider_types_and_no_new_columns",
        "tests/table/test_schema_changes.py::test_a_frame_widens_the_table",
    ),
    Operation(
        "`ALTER TABLE` in the syntax of Spark, DuckLake and MySQL: add, drop, rename and move "
        "columns",
        "tests/table/test_schema_changes.py::"
        "test_every_statement_of_the_ducklake_page_runs_as_written",
        "tests/reference/test_schema_changes_delta_spark.py::"
        "test_delta_spark_goes_on_with_what_we_changed",
    ),
    Operation(
        "`MODIFY COLUMN`, `CHANGE COLUMN` and `ALTER COLUMN … TYPE … USING` to any type, as an "
        "online change; a dry run shows its steps and cost",
        "tests/table/test_alter_online.py::"
        "test_the_last_commit_brings_all_that_a_statement_says_of_the_column",
        "tests/reference/test_column_change.py::"
        "test_delta_spark_goes_on_with_what_a_statement_changed_and_renamed",
    ),
    Operation(
        "Widen column types at every nesting level, including partition columns, as a metadata-"
        "only change",
        "tests/table/test_schema_changes.py::"
        "test_files_of_the_old_type_are_read_and_skipped_as_the_new_one",
        "tests/reference/test_schema_changes_delta_spark.py::"
        "test_every_widening_at_every_depth_is_read_alike",
    ),
    Operation(
        "Add a column with a default for existing rows, in one commit that can be resumed",
        "tests/table/test_schema_changes.py::test_a_default_is_in_every_row_of_every_file",
        "tests/table/test_schema_changes.py::test_spark_writes_the_default_and_checks_rows",
    ),
    Operation(
        "Lazy defaults: applied to existing rows at read time, without rewriting files, under a"
        " reader feature that other clients reject",
        "tests/table/test_existing_defaults.py::"
        "test_a_lazy_default_is_what_a_rewrite_would_have_written",
        "tests/conformance/test_schema_changes.py::"
        "test_no_filter_on_a_lazy_default_skips_a_file_wrongly",
    ),
    Operation(
        "Materialize lazy defaults later, resumably, after which all clients can read the table"
        " again",
        "tests/table/test_existing_defaults.py::test_a_crash_costs_no_file_that_was_written",
        "tests/conformance/test_schema_changes.py::"
        "test_a_lazy_default_is_read_through_all_that_is_done",
    ),
    Operation(
        "Add CHECK constraints and NOT NULL, with existing rows validated first",
        "tests/table/test_schema_changes.py::test_rows_that_break_a_constraint_are_shown",
        "tests/table/test_schema_changes.py::test_spark_writes_the_default_and_checks_rows",
    ),
    Operation(
        "Idempotent writes by application id and version (`idempotency`)",
        "tests/table/test_append.py::test_the_same_call_in_a_race_lands_once",
        "tests/conformance/test_writes.py::test_rows_are_written_once_per_application_version",
    ),
    _on_both(
        "Concurrent writers: no row lost or duplicated, even with crashes and lost replies",
        "tests/table/test_concurrent_writers.py::ConcurrentWriters",
    ),
    Operation(
        "Commit to S3 by conditional put",
        "tests/storage/test_tables_on_s3.py::test_writers_that_race_lose_nothing",
        None,
    ),
    Operation(
        "Commit to Google Cloud Storage and Azure by conditional put",
        "tests/storage/test_tables_in_the_cloud.py::test_writers_that_race_lose_nothing",
        None,
    ),
    Operation(
        "Commit to HDFS by an exclusive rename",
        "tests/storage/test_tables_on_hdfs.py::test_writers_that_race_lose_nothing",
        "tests/storage/test_tables_on_hdfs.py::test_spark_reads_and_writes_what_we_do",
    ),
    Operation(
        "Change data feed: read by version or timestamp, with deletion vectors and column mapping",
        "tests/conformance/test_golden_tables.py::test_the_feed_of_a_table_is_the_expected_one",
        "tests/reference/test_change_data_feed.py::test_both_read_the_feed_of_delta_spark_alike",
    ),
    _on_both(
        "Change data feed: schema changes within the range are handled, or rejected by name",
        "tests/reference/test_change_data_feed.py::test_both_refuse_the_same_schema_changes",
    ),
    Operation(
        "Structured Streaming from a table: rate limits, restarts, schema changes detected",
        None,
        "tests/table/test_spark_streaming.py::test_batches_are_limited_and_a_restart_goes_on",
    ),
    Operation(
        "Structured Streaming from the change data feed",
        None,
        "tests/table/test_spark_streaming.py::test_changes_stream_with_deletion_vectors",
    ),
    Operation(
        "Structured Streaming into a table, exactly once (`delta_sink`)",
        None,
        "tests/table/test_spark_streaming.py::"
        "test_a_killed_query_that_is_started_again_loses_and_doubles_nothing",
    ),
    Operation(
        'Spark data source (`format("delta_log")`), and `INSERT INTO` a view in SQL',
        None,
        "tests/table/test_named_writes.py::test_a_view_is_selected_from_and_inserted_into",
    ),
    _on_both(
        "Sort the rows within each data file (`sort_by`)",
        "tests/conformance/test_writes.py::test_the_rows_of_every_file_are_sorted",
    ),
    Operation(
        "Checkpoints: classic, multi-part and V2 with sidecars, written in bounded memory",
        "tests/table/test_split_checkpoints.py::test_a_checkpoint_written_in_batches_says_what_the_commits_said",
        "tests/reference/test_delta_spark.py::"
        "test_delta_spark_reads_a_split_checkpoint_and_follows_it",
    ),
    Operation(
        "Delete and update, with deletion vectors or copy-on-write, and change data files",
        "tests/table/test_row_changes.py::test_updates_record_rows_as_they_were_and_as_they_are",
        "tests/reference/test_dml_delta_spark.py::"
        "test_every_operation_gives_the_rows_and_changes_that_delta_spark_gives",
    ),
    _on_both(
        "Idempotent delete, update and merge (`idempotency`)",
        "tests/conformance/test_row_changes.py::test_an_application_changes_rows_once",
    ),
    Operation(
        "Merge: every clause, several of each with conditions, ambiguous source rows rejected",
        "tests/conformance/test_merges.py::"
        "test_every_row_gets_the_first_clause_whose_condition_holds",
        "tests/reference/test_merge_delta_spark.py::"
        "test_every_merge_gives_the_rows_that_delta_spark_gives",
    ),
    _on_both(
        'Merge adds columns and widens types (`schema_mode="merge"`)',
        "tests/reference/test_merge_evolution_delta_spark.py::"
        "test_a_merge_adds_the_columns_that_delta_spark_adds",
    ),
    Operation(
        "Overwrite part of a file, with deletion vectors and change data files",
        "tests/table/test_overwrite.py::"
        "test_part_of_a_file_that_is_replaced_stands_in_the_change_data_feed",
        "tests/conformance/test_writes.py::"
        "test_a_predicate_on_rows_keeps_the_others_and_stands_in_the_feed",
    ),
    _on_both(
        "Row tracking: ids are stable across delete, update, merge and OPTIMIZE, and read with "
        "`row_ids=True`",
        "tests/reference/test_row_tracking.py::test_ids_stay_through_our_changes_and_delta_sparks",
    ),
    _on_both(
        "Read row ids by the draft of row tracking (`rowIds`), on tables that have it",
        "tests/table/test_draft_row_ids.py::test_ids_are_read_and_the_table_is_not_written",
    ),
    _on_both(
        "Set and unset properties, enable features and upgrade the protocol of an existing table",
        "tests/reference/test_table_features_delta_spark.py::"
        "test_delta_spark_writes_on_after_each_feature_that_was_enabled",
    ),
    Operation(
        "Drop table features, with checkpoint protection for older versions (files are "
        "rewritten by the embedded engine)",
        "tests/reference/test_table_features_delta_spark.py::"
        "test_delta_spark_reads_and_writes_a_table_whose_feature_was_dropped",
        None,
    ),
    Operation(
        "Iceberg compatibility (V1 and V2)",
        "tests/reference/test_table_features_delta_spark.py::"
        "test_tables_that_stay_readable_as_iceberg_are_written_by_both",
        "tests/reference/test_table_features_delta_spark.py::"
        "test_spark_writes_tables_that_stay_readable_as_iceberg",
    ),
    Operation(
        "Dagster IO manager: a retried step never appends twice",
        "tests/orchestration/test_retries.py::test_a_retried_step_appends_once",
        "tests/orchestration/test_spark_assets.py::test_a_retried_step_appends_once",
    ),
    Operation(
        "Dagster IO manager: every kind of partitions definition, and single-run backfills",
        "tests/orchestration/test_partitioned_assets.py::"
        "test_any_rectangle_of_a_multi_partition_is_replaced",
        "tests/orchestration/test_spark_assets.py::"
        "test_a_range_of_static_partitions_is_replaced_exactly",
    ),
    Operation(
        "Dagster IO manager: takes over tables of dagster-deltalake and dagster-delta, see "
        "[migrating](migration.md)",
        "tests/orchestration/test_migration.py::"
        "test_a_partition_of_a_table_taken_over_is_replaced_and_the_others_stay",
        "tests/orchestration/test_migration.py::test_frames_of_spark_become_tables",
    ),
    Operation(
        "One Spark session per process, started from a class data sharing archive in about half"
        " the time; settings that no longer take effect are reported",
        None,
        "tests/engines/test_spark_class_archive.py::"
        "test_a_session_leaves_an_archive_and_the_next_starts_from_it",
    ),
    Operation(
        "Dagster IO manager: Spark stage progress in the run log, also over Spark Connect; "
        "metrics, the physical plan with secrets removed, and a link to the History Server in "
        "the metadata",
        None,
        "tests/orchestration/test_spark_progress.py::"
        "test_a_materialisation_of_a_frame_tells_what_spark_did",
    ),
    Operation(
        "Dagster IO manager: version, files, bytes and rows of each input on the materializations "
        "made from it",
        "tests/orchestration/test_input_metadata.py::"
        "test_a_materialization_tells_what_its_inputs_were",
        "tests/orchestration/test_spark_assets.py::test_a_spark_frame_is_stored_and_loaded",
    ),
    Operation(
        "A Spark session that runs already is used with its own settings and never stopped; "
        "resources of dagster-pyspark are accepted; a JVM that was killed is reported as such",
        None,
        "tests/orchestration/test_resources.py::"
        "test_a_session_that_somebody_else_started_keeps_its_settings_and_runs_on",
    ),
    Operation(
        "Bytes read, shuffled and spilled by Spark, where the Spark UI is enabled",
        None,
        "tests/engines/test_spark_cluster.py::"
        "test_the_bytes_of_stages_are_told_where_there_is_a_ui",
    ),
    Operation(
        "Executors without this package: reported clearly, and supplied by `ship_package`",
        None,
        "tests/engines/test_spark_cluster.py::"
        "test_workers_without_the_package_write_once_it_was_sent",
    ),
    Operation(
        "Retried and speculative tasks: committed once",
        None,
        "tests/engines/test_spark_cluster.py::"
        "test_a_task_that_ran_twice_at_once_is_in_the_commit_once",
    ),
    Operation(
        "Spark Connect: reads, writes, DML, schema changes, maintenance, change data feed, "
        "streaming",
        None,
        "tests/conformance/test_merges.py::"
        "test_every_row_gets_the_first_clause_whose_condition_holds",
    ),
    Operation(
        "Connect servers that are not Spark, such as Sail: reads, writes, DML, maintenance and "
        "assets of PySpark without Java",
        None,
        "tests/engines/test_sail.py::test_assets_run_without_java",
    ),
    Operation(
        "Dagster IO manager: merge, by type or by clauses, restricted to the partitions of the run",
        "tests/orchestration/test_merge_mode.py::test_a_merge_keeps_to_the_partitions_of_the_run",
        "tests/orchestration/test_spark_merge_assets.py::"
        "test_a_spark_frame_is_merged_into_partitions_of_a_run",
    ),
    Operation(
        "Concurrent operations: every pair of them succeeds, planned again where they conflict",
        "tests/table/test_two_writers.py::test_both_writers_succeed",
        "tests/table/test_two_writers.py::test_a_writer_on_spark_succeeds_beside_an_embedded_one",
    ),
    Operation(
        "Concurrent changes of different rows of one file: both committed (deletion vectors)",
        "tests/table/test_row_conflicts.py::"
        "test_changes_of_different_rows_of_one_file_need_no_second_attempt",
        "tests/table/test_spark_changes.py::"
        "test_changes_of_different_rows_of_one_file_are_both_committed",
    ),
    Operation(
        "Dagster IO manager: refuse the table of another asset",
        "tests/orchestration/test_table_owners.py::test_a_table_of_another_asset_is_not_written",
        None,
    ),
    Operation(
        "Checks of metadata and locations while definitions are loaded",
        "tests/orchestration/test_definition_checks.py::"
        "test_metadata_that_make_no_sense_are_refused",
        None,
    ),
    Operation(
        "Incremental assets: changes of another table applied exactly once, per partition",
        "tests/orchestration/test_change_feed_assets.py::"
        "test_a_step_that_died_after_its_commit_applies_nothing_twice",
        "tests/orchestration/test_spark_merge_assets.py::"
        "test_changes_are_taken_and_applied_by_spark",
    ),
    Operation(
        "Incremental assets: full refresh when the changes are no longer available",
        "tests/orchestration/test_change_feed_assets.py::"
        "test_where_changes_cannot_be_told_every_row_is_taken",
        None,
    ),
    Operation(
        "Incremental assets: columns that were renamed, dropped or widened upstream",
        "tests/orchestration/test_upstream_columns.py::"
        "test_a_column_renamed_upstream_takes_its_older_values_along",
        "tests/orchestration/test_upstream_columns.py::"
        "test_spark_frames_follow_renames_and_wider_types_too",
    ),
    Operation(
        "Asset checks: constraints, keys, row counts, freshness, schema drift and table health",
        "tests/orchestration/test_asset_checks.py::"
        "test_only_new_rows_are_looked_at_once_a_check_has_passed",
        None,
    ),
    Operation(
        "Dagster sensors: filter commits by the columns they change",
        "tests/orchestration/test_sensors.py::"
        "test_only_changes_of_the_columns_that_were_asked_for_count",
        None,
    ),
    _on_both(
        "Dagster sensors: new commits by any writer, a listing for an idle table",
        "tests/orchestration/test_sensors.py::test_500_idle_tables_cost_a_listing_each",
    ),
    _on_both(
        "Dagster components: tables, sensors and maintenance in a `defs.yaml`, scaffolded by `dg`",
        "tests/orchestration/test_components.py::"
        "test_a_table_is_observed_checked_and_watched_by_ten_lines",
    ),
    _on_both(
        "Dagster components: every table below a root as an asset, loaded without storage access",
        "tests/orchestration/test_components.py::"
        "test_the_tables_of_a_lake_are_found_once_and_loaded_without_storage",
    ),
    _on_both(
        "Dagster components: SQL assets and incremental assets in a `defs.yaml`",
        "tests/orchestration/test_components.py::test_queries_and_incremental_assets_are_declared",
    ),
    Operation(
        "Dagster assets of files in a landing zone: each file is loaded once",
        "tests/orchestration/test_file_assets.py::test_each_file_is_loaded_once",
        None,
    ),
    Operation(
        "OpenLineage events of writes, with inputs and column lineage",
        "tests/orchestration/test_openlineage.py::"
        "test_each_write_is_an_event_with_inputs_and_lineage",
        None,
    ),
    Operation(
        "Memory limits of OPTIMIZE, Z-order and MERGE",
        "tests/engines/test_memory_budget.py::test_the_peak_of_a_zorder_follows_its_limit",
        None,
    ),
    _on_both(
        "Health of all tables on one page of the UI, with an asset check",
        "tests/orchestration/test_health_asset.py::test_a_hundred_tables_are_one_page",
    ),
    _on_both(
        "Dagster Pipes: a job elsewhere reports its commits as materializations",
        "tests/orchestration/test_pipes.py::test_a_commit_by_another_process_is_a_materialization",
    ),
    Operation(
        "Dagster column lineage: incremental assets by name, SQL assets from their query",
        "tests/orchestration/test_column_lineage.py::"
        "test_an_incremental_asset_keeps_the_columns_of_its_upstream",
        "tests/orchestration/test_sql_assets.py::"
        "test_a_query_is_an_asset_that_shows_where_its_columns_come_from",
    ),
    Operation(
        "Dagster inputs and outputs of any type that a handler adds, and with one frame per "
        "partition key",
        "tests/orchestration/test_partition_frames.py::"
        "test_a_frame_per_partition_is_written_in_one_commit_and_read_again",
        None,
    ),
    Operation(
        "Dagster SQL assets, by DuckDB or by Spark",
        "tests/orchestration/test_sql_assets.py::"
        "test_a_query_reads_and_writes_the_partitions_of_the_run",
        "tests/orchestration/test_sql_assets.py::"
        "test_a_query_is_an_asset_that_shows_where_its_columns_come_from",
    ),
    Operation(
        "Dagster descriptions and column comments are stored in the log and shown in the UI",
        "tests/orchestration/test_descriptions.py::"
        "test_a_new_table_is_described_as_its_asset_and_its_columns_as_the_data",
        "tests/orchestration/test_descriptions.py::"
        "test_comments_of_spark_columns_reach_the_log_and_the_ui",
    ),
    _on_both(
        "Table history in the Dagster UI, each commit linked to its run",
        "tests/orchestration/test_table_history.py::"
        "test_every_commit_links_to_the_run_that_made_it",
    ),
    _on_both(
        "Dagster sensors: changed partitions become runs for their partition keys",
        "tests/orchestration/test_sensors.py::test_each_changed_day_becomes_a_run_of_its_partition",
    ),
    _on_both(
        "Observable external tables: automation reacts to changed rows, not to maintenance",
        "tests/orchestration/test_observations.py::"
        "test_automation_fires_on_commits_and_not_on_maintenance",
    ),
    Operation(
        "Log clean-up by retention: after checkpoints, as delta-spark does, or on request",
        "tests/reference/test_maintenance_delta_spark.py::"
        "test_the_log_is_cut_where_delta_spark_cuts_it",
        None,
    ),
    _on_both(
        "Files stay few: changed rows, unchanged rows and small files of one statement go to the "
        "same files where there are no deletion vectors",
        "tests/conformance/test_few_files.py::"
        "test_a_merge_unites_small_files_that_it_touches_with_its_new_rows",
    ),
    Operation(
        "OPTIMIZE: compact small files in several commits, and purge deletion vectors",
        "tests/table/test_optimize.py::"
        "test_a_concurrent_delete_costs_only_the_commit_with_its_file",
        "tests/reference/test_maintenance_delta_spark.py::"
        "test_the_rows_are_the_same_to_every_reader",
    ),
    Operation(
        "Clustered tables (`cluster_by` of `create`, of writes and of assets, `CLUSTER BY`): "
        "OPTIMIZE clusters what is new along a Hilbert curve, in cubes that delta-spark knows",
        "tests/table/test_clustering.py::test_only_what_is_new_and_small_cubes_are_clustered_again",
        "tests/reference/test_schema_changes_delta_spark.py::"
        "test_clusters_of_ours_and_of_delta_spark_are_known_to_both",
    ),
    Operation(
        "Compact small files after writes (`delta.autoOptimize.autoCompact`)",
        "tests/table/test_property_effects.py::"
        "test_small_files_are_compacted_once_there_are_enough",
        None,
    ),
    Operation(
        "Z-order by several columns, in bounded memory",
        "tests/table/test_optimize.py::test_a_z_order_is_one_commit_of_the_same_rows",
        "tests/reference/test_maintenance_delta_spark.py::"
        "test_the_rows_are_the_same_to_every_reader",
    ),
    Operation(
        "VACUUM: dry run, retention check, recorded in the log",
        "tests/reference/test_maintenance_delta_spark.py::"
        "test_vacuum_agrees_with_delta_spark_and_older_rows_come_back",
        None,
    ),
    Operation(
        "VACUUM LITE: files that commits removed are found in the log, without a listing; "
        "`keep_versions`; a report of files that no version refers to",
        "tests/reference/test_maintenance_delta_spark.py::"
        "test_a_lite_vacuum_agrees_with_delta_spark_and_each_goes_on_after_the_other",
        None,
    ),
    Operation(
        "CONVERT: a directory of Parquet files becomes a table in place, with statistics from the "
        "footers",
        "tests/reference/test_maintenance_delta_spark.py::"
        "test_a_converted_directory_is_the_table_that_delta_spark_makes_of_it",
        None,
    ),
    _on_both(
        "Symlink manifests, on request or kept by every commit",
        "tests/reference/test_maintenance_delta_spark.py::"
        "test_symlink_manifests_are_those_of_delta_spark",
    ),
    Operation(
        "FSCK: files that vanished from storage are found, and removed from the log",
        "tests/table/test_fsck.py::test_a_dry_run_names_what_vanished_and_a_repair_removes_it",
        None,
    ),
    Operation(
        "REORG: deleted rows, dropped columns and types from before a widening leave the files",
        "tests/table/test_reorg.py::test_dropped_columns_leave_the_files",
        "tests/reference/test_maintenance_delta_spark.py::"
        "test_a_reorg_on_spark_leaves_files_that_delta_spark_has_nothing_to_purge_in",
    ),
    Operation(
        "OPTIMIZE with `sort_by`: rows in one order over the files of a partition",
        "tests/table/test_reorg.py::test_optimize_sorts_the_rows_over_all_files_of_a_partition",
        "tests/reference/test_maintenance_delta_spark.py::"
        "test_a_reorg_on_spark_leaves_files_that_delta_spark_has_nothing_to_purge_in",
    ),
    Operation(
        "Restore an older version, after checking that its files still exist",
        "tests/table/test_restore.py::test_a_missing_file_is_found_before_anything_is_changed",
        None,
    ),
    Operation(
        "Dagster maintenance jobs and schedules, which trigger nothing downstream",
        "tests/orchestration/test_maintenance.py::test_nothing_downstream_runs_because_of_it",
        None,
    ),
    Operation(
        "Dagster UI in a real browser: maintenance and schema changes from the Launchpad",
        "tests/browser/test_operators.py::"
        "test_a_schema_change_is_planned_done_and_seen_on_the_page_of_the_asset",
        None,
    ),
    Operation(
        "Dagster UI in a real browser: a sensor is turned on, an external commit becomes a run",
        "tests/browser/test_operators.py::"
        "test_a_commit_by_somebody_else_becomes_a_run_once_the_sensor_is_on",
        None,
    ),
    Operation(
        "A damaged checkpoint is passed over where the log is whole without it, with a warning and "
        "in `health()`",
        "tests/table/test_damage.py::"
        "test_a_damaged_checkpoint_is_passed_over_where_all_commits_are_there",
        None,
    ),
    Operation(
        "Checksums of pages, footers and commits are written, and verified before rows are "
        "rewritten; `scan(verify_checksums=True)` verifies every page it reads",
        "tests/table/test_damage.py::"
        "test_pages_carry_checksums_and_a_flipped_bit_in_a_page_is_found",
        "tests/table/test_spark_damage.py::test_a_write_on_spark_refuses_what_is_damaged_by_name",
    ),
    Operation(
        "Clone a version, shallow or deep, with row ids kept; cloning again transfers only the "
        "difference",
        "tests/table/test_clone.py::test_cloning_again_brings_what_changed_and_nothing_else",
        None,
    ),
    _on_both(
        "Clones of this library and of delta-spark are read and written by both",
        "tests/reference/test_clone_delta_spark.py::"
        "test_clones_of_delta_spark_are_read_and_written_by_us",
    ),
    _on_both(
        "`DEFAULT` as a value in UPDATE and MERGE",
        "tests/reference/test_column_values_delta_spark.py::"
        "test_the_keyword_default_means_what_it_means_to_delta_spark",
    ),
    _on_both(
        "Change a column to any type online: backfilled in batches, including concurrent "
        "writes, published in one commit, resumable after a crash",
        "tests/reference/test_column_change.py::"
        "test_delta_spark_writes_throughout_and_reads_what_a_change_leaves",
    ),
    _on_both(
        "Column changes convert every string that Spark's CAST accepts, and every pair of types",
        "tests/sql/test_text_conversion.py::test_every_text_is_read_as_spark_reads_it",
    ),
    Operation(
        "Column changes are disabled until both the resource and the table property enable "
        "them; existing tables keep their setting",
        "tests/orchestration/test_schema_changes.py::"
        "test_a_table_made_under_the_switch_has_all_it_takes_unless_it_says_otherwise",
        None,
    ),
    Operation(
        "Cancel a column change, or roll it back at a value that cannot be converted",
        "tests/table/test_column_change.py::test_a_change_can_be_cancelled_in_every_state",
        None,
    ),
)


def render() -> str:
    """The whole page."""
    features = "\n".join(_feature_row(each) for each in TABLE_FEATURES)
    properties = "\n".join(_property_row(each) for each in KNOWN_PROPERTIES)
    operations = "\n".join(_operation_row(each) for each in OPERATIONS)
    return f"""# What works

Generated from the code by `make docs`, and checked by a test.

## Table features

A table that lists a feature marked "no" is rejected by name, before anything is written.

| Feature | What it is | Read | Write |
|---|---|---|---|
{features}

## Table properties

Every property that delta-spark knows. *Honoured* ones take effect; *kept* ones can be set, and
nothing here depends on them; *read only* ones take effect on tables that have them; *internal* ones
are kept by the writers; *refused* ones cannot be set.

| Property | Treatment | Meaning |
|---|---|---|
{properties}

## Operations

Each "yes" links to the test that demonstrates it.

| Operation | Arrow (embedded) | Spark |
|---|---|---|
{operations}
"""


def _feature_row(feature: TableFeature) -> str:
    names = " / ".join(f"`{name}`" for name in (feature.name, *feature.aliases))
    read = "yes" if feature.can_read else "no"
    write = "yes" if feature.can_write else "no"
    return f"| {names} | {feature.description} | {read} | {write} |"


def _property_row(each: KnownProperty) -> str:
    return f"| `{each.name}` | {each.treatment} | {each.what} |"


def _operation_row(operation: Operation) -> str:
    return f"| {operation.what} | {_proof(operation.arrow)} | {_proof(operation.spark)} |"


def _proof(test: str | None) -> str:
    return f"[yes](../{test.split('::')[0]})" if test else "no"


if __name__ == "__main__":
    PAGE.write_text(render())
