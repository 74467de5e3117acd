"""What plans say about other programs, and which changes they refuse for the readers of a table."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from dagster_delta import Column, DeltaTable, Identity
from dagster_delta.errors import InvalidArgument, SchemaChangeRefused
from dagster_delta.evolution.programs import (
    READERS_PROPERTY,
    load_programs,
    program_lines,
    readers_with,
    similar_tables,
)
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.table.programs import clone_lines, lines_about_properties
from tests.readers.notes import INSTEAD, NOTES

ROWS = pa.table({"id": pa.array([1, 2], pa.int32()), "name": ["a", "b"]})
WIDENING = {"delta.enableTypeWidening": "true"}
MAPPED = {"delta.columnMapping.mode": "name"}
FEED = {"delta.enableChangeDataFeed": "true"}


def table(path: Path, **properties: str) -> DeltaTable:
    named = {key.replace("_", "."): value for key, value in properties.items()}
    created = DeltaTable.create(str(path / "t"), ROWS.schema, properties=named)
    created.append(ROWS)
    return created


def configuration(path: Path, **options: object) -> TableConfiguration:
    columns = options.pop("columns", None) or ROWS.schema
    created = DeltaTable.create(str(path / "t"), columns, **options)  # type: ignore[arg-type]
    return created.snapshot().configuration


@pytest.mark.parametrize(
    ("options", "like"),
    [
        ({}, ()),
        ({"properties": {"delta.enableDeletionVectors": "true"}}, ("deletion vectors",)),
        (
            {"properties": {"delta.columnMapping.mode": "name"}},
            ("column mapping without nested columns",),
        ),
        ({"properties": {"delta.columnMapping.mode": "id"}}, ("column mapping by id",)),
        (
            {"properties": MAPPED, "columns": [Column("c", "ARRAY<INT>")]},
            ("column mapping by name", "column mapping with a list", "nested types"),
        ),
        (
            {"properties": MAPPED, "columns": [Column("c", "ARRAY<STRUCT<a: INT>>")]},
            ("column mapping by name", "column mapping with a list of structs", "nested types"),
        ),
        (
            {"properties": MAPPED | FEED},
            (
                "change data feed",
                "change data feed with column mapping",
                "column mapping without nested columns",
            ),
        ),
        (
            {"properties": FEED | {"delta.enableDeletionVectors": "true"}},
            ("change data feed", "change data feed with deletion vectors", "deletion vectors"),
        ),
        ({"properties": {"delta.checkpointPolicy": "v2"}}, ("V2 checkpoint",)),
        ({"properties": {"delta.enableChangeDataFeed": "true"}}, ("change data feed",)),
        ({"properties": {"delta.enableRowTracking": "true"}}, ("row tracking",)),
        ({"cluster_by": ["id"]}, ("clustering",)),
        ({"partition_by": ["id"]}, ("partitioned by int", "append to two partitions")),
        (
            {"properties": MAPPED, "columns": [Column("c", "INT"), Column("t", "TIMESTAMP_NTZ")]},
            ("column mapping in a list of features", "timestamp_ntz"),
        ),
        (
            {"properties": MAPPED | FEED | {"delta.enableDeletionVectors": "true"}},
            (
                "change data feed",
                "change data feed with column mapping",
                "change data feed with deletion vectors",
                "column mapping in a list of features",
                "deletion vectors",
            ),
        ),
        (
            {"properties": MAPPED, "partition_by": ["name"]},
            (
                "append to two partitions",
                "column mapping without nested columns",
                "column mapping, partitioned",
                "partitioned by string",
            ),
        ),
        (
            # DuckDB reads the values of the first column.
            {"properties": MAPPED, "partition_by": ["id"]},
            (
                "append to two partitions",
                "column mapping without nested columns",
                "partitioned by int",
            ),
        ),
        ({"columns": [Column("c", "TIMESTAMP_NTZ")]}, ("timestamp_ntz",)),
        ({"columns": [Column("c", "VARIANT")]}, ("variant",)),
        ({"columns": [Column("c", "INT", default="1")]}, ("column default",)),
        ({"columns": [Column("c", "INT", nullable=False)]}, ("NOT NULL column",)),
        (
            {"columns": [Column("c", "BIGINT", nullable=False, identity=Identity())]},
            ("NOT NULL column", "identity column"),
        ),
    ],
    ids=str,
)
def test_a_table_is_like_the_measured_ones_with_its_features(
    options: dict[str, object], like: tuple[str, ...], tmp_path: Path
) -> None:
    found = similar_tables(configuration(tmp_path, **options))
    assert sorted(found) == sorted(like)
    assert set(found) <= set(load_programs().tables)


@pytest.mark.parametrize("new_type", ["BIGINT", "DOUBLE", "DECIMAL(12,2)"])
@pytest.mark.parametrize("old_type", [pa.int8(), pa.int16(), pa.int32()], ids=str)
def test_each_widening_was_measured(old_type: pa.DataType, new_type: str, tmp_path: Path) -> None:
    schema = pa.schema([("n", old_type)])
    changed = DeltaTable.create(str(tmp_path / "t"), schema, properties=WIDENING)
    changed.alter(f"ALTER COLUMN n TYPE {new_type}")
    wider = [name for name in similar_tables(changed.snapshot().configuration) if ":" in name]
    assert len(wider) == 1
    assert set(wider) <= set(load_programs().tables)


STATEMENTS = (
    "SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
    "SET TBLPROPERTIES ('delta.checkpointPolicy' = 'v2')",
    "SET TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true')",
    "SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')",
    "RENAME COLUMN name TO label",
    "ALTER COLUMN id TYPE BIGINT",
    "ADD COLUMN more INT",
    "ADD CONSTRAINT small CHECK (id < 100)",
    "ALTER COLUMN id SET DEFAULT 7",
)


def assert_measured(lines: Iterable[str]) -> None:
    """Each program that the lines name has a cell that says so."""
    known = load_programs()
    like = None
    warned = 0
    for line in lines:
        if found := re.match(r"- other programs, of a table with `(.*)`:", line):
            like = found[1]
            continue
        said = re.match(r"  - (.*?): (.*)", line)
        if like is None or said is None or said[1] in ("instead", "why"):
            continue
        verdicts = {"wrong"} if "wrong" in said[1] else {"refused", "ended"}
        is_append = "append" in said[1] or "store" in said[1]
        for name, measured in known.programs.items():
            if f"{name} {measured.version}" in said[2]:
                warned += 1
                assert any(
                    (cell.table, cell.program) == (like, name)
                    and cell.verdict in verdicts
                    and (cell.act == "append") == is_append
                    for cell in known.cells
                )
    assert warned


@pytest.mark.parametrize("statement", STATEMENTS)
def test_what_a_plan_warns_of_is_a_cell_that_was_measured(statement: str, tmp_path: Path) -> None:
    plan = table(tmp_path).alter(statement, dry_run=True, enable_features=True).plan
    assert_measured(plan.to_markdown().splitlines())


FEATURES = (
    {"delta.enableDeletionVectors": "true"},
    {"delta.columnMapping.mode": "name"},
    {"delta.columnMapping.mode": "id", "delta.enableDeletionVectors": "true"},
    {"delta.checkpointPolicy": "v2"},
    {"delta.enableChangeDataFeed": "true"},
    {"delta.enableInCommitTimestamps": "true"},
    {"delta.enableTypeWidening": "true"},
)


@pytest.mark.parametrize("properties", FEATURES, ids=lambda named: ", ".join(named))
def test_what_a_clone_and_a_first_write_warn_of_was_measured(
    properties: dict[str, str], tmp_path: Path
) -> None:
    created = DeltaTable.create(str(tmp_path / "t"), ROWS.schema, properties=properties).snapshot()
    assert_measured(lines_about_properties(created, properties))
    assert_measured(clone_lines(created, is_shallow=False))
    assert_measured(clone_lines(created, is_shallow=True))


# A conversion refuses column mapping.
@pytest.mark.parametrize(
    "properties", [named for named in FEATURES if "delta.columnMapping.mode" not in named], ids=str
)
def test_what_a_conversion_warns_of_was_measured(
    properties: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pq.write_table(ROWS, tmp_path / "a.parquet")
    DeltaTable.convert(tmp_path, properties=properties)
    assert_measured(line for message in caplog.messages for line in message.splitlines())


def test_a_plan_names_first_who_goes_wrong_without_an_error(tmp_path: Path) -> None:
    plan = table(tmp_path).alter("RENAME COLUMN name TO label", dry_run=True, enable_features=True)
    lines = plan.to_markdown().splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("- other programs"))
    assert "wrong without an error" in lines[start + 1]
    assert "deltalake 1.6" in lines[start + 1]
    assert any("cannot read: " in line and "polars" in line for line in lines[start:])
    assert any("  - instead: " in line for line in lines[start:])


def test_a_plan_names_duckdb_where_it_stores_nulls(tmp_path: Path) -> None:
    rows = ROWS.append_column("at", pa.array([1, 2], pa.timestamp("us")))
    changed = DeltaTable.create(str(tmp_path / "t"), rows.schema)
    statement = "RENAME COLUMN name TO label"
    plan = changed.alter(statement, dry_run=True, enable_features=True).plan.to_markdown()
    stored = next(line for line in plan.splitlines() if "store wrong rows" in line)
    assert "DuckDB 1." in stored
    assert "daft " in stored
    assert_measured(plan.splitlines())


def test_a_rename_of_the_first_column_names_duckdb_as_a_reader_of_partitions(
    tmp_path: Path,
) -> None:
    changed = DeltaTable.create(
        str(tmp_path / "t"),
        ROWS.schema,
        partition_by=["name"],
        properties={"dagsterDelta.readers": "DuckDB"},
    )
    changed.alter("RENAME COLUMN name TO label", enable_features=True)
    with pytest.raises(SchemaChangeRefused, match=r"DuckDB 1\..*partition columns are NULL"):
        changed.alter("RENAME COLUMN id TO key")


def test_a_plan_says_why_where_nothing_else_helps(tmp_path: Path) -> None:
    plan = table(tmp_path).alter("ADD COLUMN s STRUCT<a: INT>", dry_run=True).plan
    assert "  - why: structs, lists and maps have no NULL in ClickHouse" in plan.to_markdown()


def test_a_plan_names_who_cannot_filter_by_a_new_field(tmp_path: Path) -> None:
    schema = pa.schema([("s", pa.struct([("a", pa.int32())]))])
    changed = DeltaTable.create(str(tmp_path / "t"), schema)
    added = changed.alter("ADD COLUMN s.b INT", dry_run=True).plan.to_markdown()
    assert "of a table with `field of a struct added later`" in added
    assert "cannot count or filter: daft" in added
    other = changed.alter("ADD COLUMN t STRUCT<b: INT>", dry_run=True).plan.to_markdown()
    assert "field of a struct added later" not in other


@pytest.mark.parametrize("column", ["a", "s", "s.b"])
def test_a_plan_names_who_cannot_read_what_stands_after_a_dropped_column(
    column: str, tmp_path: Path
) -> None:
    columns = [
        Column("id", "INT"),
        Column("a", "STRING"),
        Column("s", "STRUCT<a: INT, b: INT>"),
        Column("z", "INT"),
    ]
    mapped = {"delta.columnMapping.mode": "name"}
    changed = DeltaTable.create(str(tmp_path / "t"), columns, properties=mapped)
    plan = changed.alter(f"DROP COLUMN {column}", dry_run=True).plan.to_markdown()
    assert "of a table with `column dropped before another`" in plan
    assert "cannot read: daft" in plan
    assert_measured(plan.splitlines())
    last = changed.alter("DROP COLUMN z", dry_run=True).plan.to_markdown()
    assert "column dropped before another" not in last


def test_the_notes_of_the_package_are_those_that_measuring_writes() -> None:
    """What is edited in the file alone is lost when a program is asked again."""
    known = load_programs()
    assert known.instead == INSTEAD
    assert known.notes == NOTES


def test_who_refuses_the_changes_of_a_wider_column_reads_its_rows(tmp_path: Path) -> None:
    changed = DeltaTable.create(str(tmp_path / "t"), ROWS.schema, properties=WIDENING | FEED)
    statement = "ALTER COLUMN id TYPE BIGINT"
    plan = changed.alter(statement, dry_run=True).plan.to_markdown()
    assert "cannot read its changes: delta-spark" in plan
    changed.alter(statement)
    assert not any(name.startswith("delta-spark") for name in changed.health().refused_by)


def test_a_new_table_without_features_means_nothing_for_others(tmp_path: Path) -> None:
    assert not list(program_lines(None, configuration(tmp_path)))


def test_a_change_is_refused_that_a_named_reader_would_misread(tmp_path: Path) -> None:
    changed = table(
        tmp_path, dagsterDelta_readers="duckdb, Polars", delta_enableTypeWidening="true"
    )
    assert changed.metadata().configuration["dagsterDelta.readers"] == "DuckDB,polars"
    changed.alter("ALTER COLUMN id TYPE BIGINT")
    version = changed.version()
    statement = "ALTER COLUMN id TYPE DECIMAL(22,2)"
    assert "**refused**" in changed.alter(statement, dry_run=True).plan.to_markdown()
    with pytest.raises(SchemaChangeRefused, match=r"DuckDB 1\..*force=True"):
        changed.alter(statement)
    assert changed.version() == version
    changed.alter(statement, force=True)
    # What is as it was does not stop later changes.
    changed.alter("ADD COLUMN more INT")


def test_readers_are_named_of_a_table_that_they_misread_by_force_only(tmp_path: Path) -> None:
    changed = table(tmp_path)
    changed.alter("RENAME COLUMN name TO label", enable_features=True)
    readers = {"dagsterDelta.readers": "deltalake"}
    with pytest.raises(SchemaChangeRefused, match="to_pyarrow_table"):
        changed.set_properties(readers)
    changed.set_properties(readers, force=True)
    changed.set_properties({"dagsterDelta.readers": "polars"})


LOCAL = pa.table({"at": pa.array([1], pa.timestamp("us"))})
NESTED = pa.table({"s": pa.array([{"a": 1}])})


def test_an_overwrite_asks_for_the_readers_too(tmp_path: Path) -> None:
    changed = table(tmp_path)
    changed.set_properties({"dagsterDelta.readers": "chdb"})
    with pytest.raises(SchemaChangeRefused, match="session's time zone"):
        changed.overwrite(LOCAL, schema_mode="overwrite")


def test_a_restore_asks_for_the_readers_too(tmp_path: Path) -> None:
    changed = table(tmp_path)
    changed.overwrite(NESTED, schema_mode="overwrite")
    misread = changed.version()
    changed.overwrite(ROWS, schema_mode="overwrite")
    changed.set_properties({"dagsterDelta.readers": "chdb"})
    with pytest.raises(SchemaChangeRefused, match="NULL struct"):
        changed.restore(misread)
    restored = changed.restore(misread, force=True)
    assert restored.snapshot.schema.names == ("s",)


def test_a_table_that_a_reader_misreads_already_is_cloned(tmp_path: Path) -> None:
    changed = table(tmp_path)
    changed.overwrite(LOCAL, schema_mode="overwrite")
    changed.set_properties({"dagsterDelta.readers": "chdb"}, force=True)
    copy = changed.clone(str(tmp_path / "copy"))
    assert copy.snapshot.num_records == 1


def test_an_online_change_asks_for_the_readers_before_it_begins(tmp_path: Path) -> None:
    changed = table(tmp_path, dagsterDelta_enableColumnChange="true", dagsterDelta_readers="chdb")
    changed.set_properties({"delta.columnMapping.mode": "name"})
    version = changed.version()
    with pytest.raises(SchemaChangeRefused, match="session's time zone"):
        changed.change_column("name", "TIMESTAMP_NTZ", on_error="null")
    assert changed.version() == version
    changed.change_column("name", "TIMESTAMP_NTZ", on_error="null", force=True)
    assert str(changed.schema().field("name").data_type) == "timestamp_ntz"


def test_nested_columns_are_misread_too(tmp_path: Path) -> None:
    changed = table(tmp_path)
    changed.set_properties({"dagsterDelta.readers": "chdb"})
    with pytest.raises(SchemaChangeRefused, match="NULL struct"):
        changed.overwrite(NESTED, schema_mode="overwrite")


def test_the_change_feed_that_sail_lacks_is_no_reason_to_refuse(tmp_path: Path) -> None:
    changed = table(tmp_path)
    changed.set_properties({"dagsterDelta.readers": "Sail"})
    changed.set_properties({"delta.enableChangeDataFeed": "true"})
    plan = changed.alter("SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')", dry_run=True)
    assert plan.skipped


def test_an_unknown_reader_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidArgument, match=r"polar is not a program .* daft, delta-spark, deltalake"
    ):
        table(tmp_path).set_properties({"dagsterDelta.readers": "polar"})


def test_a_reader_that_another_release_has_measured_stops_no_change(tmp_path: Path) -> None:
    made = configuration(tmp_path, properties={"delta.columnMapping.mode": "id"})
    properties = {**made.metadata.configuration, READERS_PROPERTY: "unmeasured, polars"}
    stored = replace(made, metadata=replace(made.metadata, configuration=properties))
    assert not any("unmeasured" in line for line in program_lines(None, stored))
    assert [name.split()[0] for name in readers_with(stored, "refused")] == ["polars"]


def test_health_names_programs_that_misread_or_refuse_a_table(tmp_path: Path) -> None:
    changed = table(tmp_path, delta_enableDeletionVectors="true")
    health = changed.health()
    assert any(name.startswith("chdb") for name in health.misread_by)
    assert any(name.startswith("daft") for name in health.refused_by)
    changed.set_properties({"dagsterDelta.readers": "polars"})
    health = changed.health()
    assert (health.misread_by, health.refused_by) == ((), ())
    assert readers_with(changed.snapshot().configuration, "wrong") == ()


def test_a_clone_names_programs_that_cannot_read_it(tmp_path: Path) -> None:
    source = table(tmp_path, delta_enableDeletionVectors="true").snapshot()
    deep = "\n".join(clone_lines(source, is_shallow=False))
    shallow = "\n".join(clone_lines(source, is_shallow=True))
    assert "deletion vectors" in deep
    assert "shallow clone" not in deep
    assert shallow.startswith("- other programs, of a table with `shallow clone`")
    assert "instead: `clone(deep=True)`" in shallow
    assert deep in shallow


def test_a_converted_table_names_programs_that_misread_its_properties(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    DeltaTable.convert(tmp_path, properties={"delta.enableDeletionVectors": "true"})
    assert "**wrong without an error**: chdb" in caplog.text
