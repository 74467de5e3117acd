"""What a change of the schema does to the configuration of its table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_delta.engines.embedded_values import EMBEDDED_VALUES
from dagster_delta.errors import InvalidArgument, SchemaChangeRefused, SchemaMismatch
from dagster_delta.evolution.dependants import CLUSTERING_DOMAIN
from dagster_delta.evolution.plan import SchemaChangePlan, SchemaDraft
from dagster_delta.evolution.planning import plan_schema_changes
from dagster_delta.evolution.statement import parse_alter
from dagster_delta.evolution.table_definition import TableDefinition, define_table
from dagster_delta.evolution.type_spelling import parse_type
from dagster_delta.protocol.actions import Protocol
from dagster_delta.protocol.features.column_mapping import field_id, physical_name
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.features.type_widening import is_widening, type_changes
from dagster_delta.protocol.schema import StructField, StructType, walk_fields
from tests.sample_tables import MAPPED

COLUMNS = (
    "STRUCT<id: INT, s: STRUCT<x: TINYINT, y: STRING>, tags: ARRAY<STRUCT<k: SMALLINT>>, "
    "m: MAP<FLOAT, ARRAY<INT>>, d: DATE, p: INT>"
)
WIDENING = {"delta.enableTypeWidening": "true"}


def table(
    columns: str | StructType = COLUMNS,
    properties: Mapping[str, object] | None = None,
    partition_by: tuple[str, ...] = (),
) -> TableConfiguration:
    schema = parse_type(columns) if isinstance(columns, str) else columns
    assert isinstance(schema, StructType)
    definition = TableDefinition(schema, partition_by, properties)
    return define_table(definition, table_id="id", created_time_ms=0, values=EMBEDDED_VALUES)


def plan(configuration: TableConfiguration, sql: str, **options: Any) -> SchemaChangePlan:
    return plan_schema_changes(
        SchemaDraft(configuration, **options), parse_alter(sql), EMBEDDED_VALUES
    )


def schema_after(configuration: TableConfiguration, sql: str, **options: Any) -> str:
    return str(plan(configuration, sql, **options).after.schema)


# Adding


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("ADD c INT", "struct<a:integer,s:struct<x:string>,c:integer>"),
        ("ADD c INT FIRST", "struct<c:integer,a:integer,s:struct<x:string>>"),
        ("ADD c INT AFTER A", "struct<a:integer,c:integer,s:struct<x:string>>"),
        ("ADD S.c INT", "struct<a:integer,s:struct<x:string,c:integer>>"),
        ("ADD s.c INT FIRST", "struct<a:integer,s:struct<c:integer,x:string>>"),
    ],
)
def test_columns_are_added_where_they_are_wanted(sql: str, expected: str) -> None:
    assert schema_after(table("STRUCT<a: INT, s: STRUCT<x: STRING>>"), sql) == expected


def test_fields_are_added_below_arrays_and_map_values() -> None:
    configuration = table("STRUCT<a: ARRAY<STRUCT<x: INT>>, m: MAP<STRING, STRUCT<x: INT>>>")
    after = schema_after(configuration, "ADD a.element.y INT, ADD m.value.y INT")
    assert after == (
        "struct<a:array<struct<x:integer,y:integer>>,m:map<string,struct<x:integer,y:integer>>>"
    )


def test_a_new_column_is_metadata_alone_and_enables_nothing() -> None:
    done = plan(table(), "ADD COLUMN c STRING COMMENT 'why'")
    assert not done.rewrites_data
    assert not done.validates_rows
    assert done.after.protocol == done.before.protocol
    assert done.after.schema.field("c").comment == "why"


def test_a_default_reaches_existing_rows_by_new_files_or_not_at_all() -> None:
    done = plan(table(), "ADD COLUMN c STRING DEFAULT 'x'")
    assert done.fills == {"c": "'x'"}
    assert done.after.schema.field("c").metadata == {"CURRENT_DEFAULT": "'x'"}
    assert done.after.supports("allowColumnDefaults")
    lazy = plan(table(), "ADD COLUMN c STRING DEFAULT 'x'", existing_rows="null")
    assert not lazy.rewrites_data
    assert lazy.after.schema == done.after.schema


def test_a_not_null_column_has_existing_rows_checked() -> None:
    (check,) = plan(table(), "ADD s.c INT NOT NULL").checks
    assert check.sql == "`s` IS NULL OR `s`.`c` IS NOT NULL"


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("ADD ID INT", "there is a column id already"),
        ("ADD s.X INT", r"there is a column s\.x already"),
        ("ADD c INT AFTER nowhere", "not on the same level"),
        ("ADD s.c INT DEFAULT 1", "only whole columns"),
        ("ADD c INT DEFAULT id + 1", "no columns to look at"),
        ("ADD c INT DEFAULT 'x'", "not a value of type integer"),
        ("ADD c TINYINT DEFAULT 300", "not a value of type byte"),
        ("ADD tags.element.c INT NOT NULL", "array or a map"),
        ("ADD `a;b` INT", "delta.columnMapping.mode"),
    ],
)
def test_definitions_that_make_no_sense_are_refused(sql: str, problem: str) -> None:
    with pytest.raises((InvalidArgument, SchemaMismatch), match=problem):
        plan(table(), sql)


def test_a_column_that_is_there_may_be_no_error() -> None:
    assert not plan(table(), "ADD COLUMN IF NOT EXISTS id STRING").changes_anything


def test_names_of_the_change_data_feed_are_taken() -> None:
    fed = {"delta.enableChangeDataFeed": "true"}
    for sql in ("ADD _change_type INT", "RENAME id TO _commit_version"):
        with pytest.raises(InvalidArgument, match="change data feed"):
            plan(table(properties={**fed, **MAPPED}), sql)
    with pytest.raises(InvalidArgument, match="change data feed"):
        table("STRUCT<id: INT, _commit_timestamp: LONG>", fed)


# Column mapping


def test_dropping_and_renaming_wait_for_permission_to_map_columns() -> None:
    for sql in ("DROP COLUMN id", "RENAME id TO i"):
        with pytest.raises(SchemaChangeRefused, match=r"delta\.columnMapping\.mode = name"):
            plan(table(), sql)


@pytest.mark.parametrize(
    ("sql", "options"),
    [
        ("DROP COLUMN s.y", {"enable_features": True}),
        ("SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name'), DROP COLUMN s.y", {}),
    ],
)
def test_mapping_keeps_the_names_that_files_have(sql: str, options: dict[str, Any]) -> None:
    done = plan(table(), sql, **options)
    assert done.after.column_mapping_mode == "name"
    assert str(done.after.schema.field("s").data_type) == "struct<x:byte>"
    for path, field in walk_fields(done.after.schema):
        assert physical_name(field) == path[-1]
    ids = [field_id(field) for _, field in walk_fields(done.after.schema)]
    assert len(set(ids)) == len(ids)
    assert None not in ids


def test_ids_and_physical_names_are_never_used_again() -> None:
    before = table(properties=MAPPED)
    again = plan(before, "DROP COLUMN d, ADD COLUMN d DATE").after
    old, new = before.schema.field("d"), again.schema.field("d")
    assert field_id(new) not in {field_id(field) for _, field in walk_fields(before.schema)}
    assert physical_name(new) != physical_name(old)
    largest = again.properties.column_mapping_max_column_id
    assert largest == before.properties.column_mapping_max_column_id + 1
    dropped = plan(again, "DROP COLUMN d").after
    assert dropped.properties.column_mapping_max_column_id == largest


def test_a_renamed_column_keeps_id_and_physical_name() -> None:
    before = table(properties=MAPPED, partition_by=("p",))
    after = plan(before, "RENAME P TO q, RENAME COLUMN tags.element.K TO `odd, name`").after
    assert physical_name(after.schema.field("q")) == physical_name(before.schema.field("p"))
    assert after.partition_columns == ("q",)
    assert "odd, name" in str(after.schema)


def test_a_rename_may_change_the_case_alone() -> None:
    assert plan(table(properties=MAPPED), "RENAME id TO ID").after.schema.names[0] == "ID"


def test_a_column_changes_name_and_type_in_one_statement() -> None:
    done = plan(table(properties={**MAPPED, **WIDENING}), "CHANGE id ident BIGINT NOT NULL")
    field = done.after.schema.field("ident")
    assert (str(field.data_type), field.nullable) == ("long", False)
    assert [check.sql for check in done.checks] == ["`ident` IS NOT NULL"]


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("RENAME id TO S", "there is a column"),
        ("DROP COLUMN nothing", "there is no column nothing"),
        ("DROP COLUMN tags.element", "part of the type"),
        ("DROP COLUMN s.x, DROP COLUMN s.y", "no other"),
        ("RENAME s.nothing TO b", r"no column s\.nothing; in s there are x, y"),
        ("DROP COLUMN p", "partitioning by p"),
    ],
)
def test_columns_that_cannot_go_are_refused_by_name(sql: str, problem: str) -> None:
    with pytest.raises((InvalidArgument, SchemaMismatch, SchemaChangeRefused), match=problem):
        plan(table(properties=MAPPED, partition_by=("p",)), sql)


# What depends on a column


def with_field(name: str, **metadata: object) -> TableConfiguration:
    schema = parse_type(COLUMNS)
    assert isinstance(schema, StructType)
    fields = (
        StructField(each.name, each.data_type, metadata=metadata) if each.name == name else each
        for each in schema
    )
    return table(StructType(tuple(fields)), {**MAPPED, **WIDENING})


INVARIANT = json.dumps({"expression": {"expression": "id > 3"}})


@pytest.mark.parametrize(
    ("configuration", "named"),
    [
        (
            plan(table(properties={**MAPPED, **WIDENING}), "ADD CONSTRAINT c CHECK (id > 3)").after,
            "the CHECK constraint c (id > 3)",
        ),
        (
            with_field(
                "d",
                **{"delta.generationExpression": "CAST(date_add(DATE '2000-01-01', id) AS DATE)"},
            ),
            "the generated column d",
        ),
        (with_field("p", **{"delta.invariants": INVARIANT}), "the invariant of column p"),
    ],
)
@pytest.mark.parametrize("sql", ["DROP COLUMN ID", "RENAME id TO i", "ALTER id TYPE BIGINT"])
def test_expressions_hold_on_to_their_columns(
    configuration: TableConfiguration, named: str, sql: str
) -> None:
    with pytest.raises(SchemaChangeRefused) as caught:
        plan(configuration, sql)
    assert named in str(caught.value)
    assert caught.value.column == "id"
    assert plan(configuration, "DROP COLUMN m").changes_anything


def test_a_constraint_on_one_field_lets_its_neighbour_go() -> None:
    configuration = plan(table(properties=MAPPED), "ADD CONSTRAINT c CHECK (s.x > 3)").after
    assert plan(configuration, "DROP COLUMN s.y").changes_anything
    for sql in ("DROP COLUMN s", "RENAME s TO t", "DROP COLUMN s.x"):
        with pytest.raises(SchemaChangeRefused, match="CHECK constraint c"):
            plan(configuration, sql)


def test_a_constraint_dropped_in_the_same_statement_holds_nothing() -> None:
    configuration = plan(table(properties=MAPPED), "ADD CONSTRAINT c CHECK (id > 3)").after
    after = plan(configuration, "DROP CONSTRAINT C, DROP COLUMN id").after
    assert after.schema.get("id") is None
    assert not after.properties.constraints


def test_clustering_holds_on_to_a_column_and_follows_its_name() -> None:
    clustered = plan(table(properties=MAPPED), "CLUSTER BY (id, s.x)")
    domains = clustered.domains
    assert json.loads(domains[CLUSTERING_DOMAIN].configuration)["clusteringColumns"] == [
        [physical_name(clustered.after.schema.field("id"))],
        [
            physical_name(clustered.after.schema.field("s")),
            physical_name(dict(walk_fields(clustered.after.schema))["s", "x"]),
        ],
    ]
    for sql in ("DROP COLUMN id", "DROP COLUMN s"):
        with pytest.raises(SchemaChangeRefused, match="the clustering by"):
            plan(clustered.after, sql, domains=domains)
    renamed = plan(clustered.after, "RENAME id TO i", domains=domains)
    with pytest.raises(SchemaChangeRefused, match="clustering by i"):
        plan(renamed.after, "DROP COLUMN i", domains=domains)
    assert plan(clustered.after, "CLUSTER BY NONE, DROP COLUMN id", domains=domains).domains


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("CLUSTER BY (tags)", "cannot be clustered by column tags: values of type array"),
        ("CLUSTER BY (tags.element.k)", "array or a map"),
        ("CLUSTER BY (id, ID)", "twice"),
        ("CLUSTER BY (d)", "no statistics"),
        ("CLUSTER BY (a, b, c, d, e)", "up to 4"),
    ],
)
def test_clustering_columns_have_statistics(sql: str, problem: str) -> None:
    configuration = table(properties={"delta.dataSkippingStatsColumns": "id,s"})
    with pytest.raises((InvalidArgument, SchemaChangeRefused), match=problem):
        plan(configuration, sql)


def test_the_list_of_columns_with_statistics_follows() -> None:
    configuration = table(properties={**MAPPED, "delta.dataSkippingStatsColumns": "id,s.x,d"})
    after = plan(configuration, "RENAME s TO `t t`, DROP COLUMN d").after
    assert after.metadata.configuration["delta.dataSkippingStatsColumns"] == "id,`t t`.x"


# Types


@pytest.mark.parametrize(
    ("sql", "column", "change"),
    [
        ("ALTER id TYPE BIGINT", ("id",), {"fromType": "integer", "toType": "long"}),
        ("ALTER s.x TYPE INT", ("s", "x"), {"fromType": "byte", "toType": "integer"}),
        (
            "ALTER tags.element.k TYPE DECIMAL(12,2)",
            ("tags", "element", "k"),
            {"fromType": "short", "toType": "decimal(12,2)"},
        ),
        (
            "ALTER m.key TYPE DOUBLE",
            ("m",),
            {"fromType": "float", "toType": "double", "fieldPath": "key"},
        ),
        (
            "ALTER m.value.element TYPE BIGINT",
            ("m",),
            {"fromType": "integer", "toType": "long", "fieldPath": "value.element"},
        ),
        (
            "ALTER m TYPE MAP<FLOAT, ARRAY<BIGINT>>",
            ("m",),
            {"fromType": "integer", "toType": "long", "fieldPath": "value.element"},
        ),
        (
            "ALTER s TYPE STRUCT<X: BIGINT, y: STRING>",
            ("s", "x"),
            {"fromType": "byte", "toType": "long"},
        ),
        ("ALTER d TYPE TIMESTAMP_NTZ", ("d",), {"fromType": "date", "toType": "timestamp_ntz"}),
    ],
)
def test_a_change_is_recorded_on_the_nearest_field(
    sql: str, column: tuple[str, ...], change: dict[str, str]
) -> None:
    after = plan(table(properties=WIDENING), sql).after
    field = dict(walk_fields(after.schema))[column]
    assert field.metadata["delta.typeChanges"] == [change]
    after.check_readable(table="t", version=1)


def test_the_record_grows_and_survives_every_other_change() -> None:
    configuration = table(properties={**WIDENING, **MAPPED})
    for sql in (
        "ALTER s.x TYPE SMALLINT",
        "ALTER s.x TYPE INT",
        "RENAME s TO t",
        "ALTER t.x COMMENT 'c'",
        "ALTER t.x FIRST",
        "ADD t.z INT",
        "ALTER t.x TYPE BIGINT",
    ):
        configuration = plan(configuration, sql).after
    field = dict(walk_fields(configuration.schema))["t", "x"]
    assert [str(each.to_type) for each in type_changes(field)] == ["short", "integer", "long"]


def test_a_preview_table_goes_on_in_its_dialect() -> None:
    stable = table(properties=WIDENING)
    preview = tuple(
        "typeWidening-preview" if each == "typeWidening" else each
        for each in stable.protocol.writer_features or ()
    )
    protocol = Protocol(
        min_reader_version=3,
        min_writer_version=7,
        reader_features=("typeWidening-preview",),
        writer_features=preview,
    )
    configuration = TableConfiguration(protocol, stable.metadata)
    after = plan(configuration, "ALTER id TYPE BIGINT", table_version=7).after
    (change,) = type_changes(after.schema.field("id"))
    assert change.table_version == 7
    assert "typeWidening" not in (after.protocol.writer_features or ())


def test_widening_waits_for_permission() -> None:
    with pytest.raises(SchemaChangeRefused, match=r"delta\.enableTypeWidening = true"):
        plan(table(), "ALTER id TYPE BIGINT")
    after = plan(table(), "ALTER id TYPE BIGINT", enable_features=True).after
    assert after.type_widening_enabled
    assert "typeWidening" in (after.protocol.reader_features or ())
    assert plan(
        table(), "SET TBLPROPERTIES ('delta.enableTypeWidening' = true), ALTER id TYPE BIGINT"
    ).after.type_widening_enabled


def test_the_type_a_column_has_already_needs_no_permission() -> None:
    assert not plan(table(), "ALTER id TYPE INT, MODIFY d DATE").changes_anything


TYPES = (
    "byte", "short", "integer", "long", "float", "double", "date", "timestamp", "timestamp_ntz",
    "string", "boolean", "binary", "decimal(10,0)", "decimal(10,2)", "decimal(12,2)",
    "decimal(20,0)", "decimal(38,18)", "array<integer>",
)  # fmt: skip


@given(st.sampled_from(TYPES), st.sampled_from(TYPES))
def test_what_is_no_widening_is_refused_with_both_types_and_the_way_out(old: str, new: str) -> None:
    configuration = table(f"STRUCT<c: {old}>", WIDENING)
    from_type, to_type = parse_type(old), parse_type(new)
    sql = f"ALTER c TYPE {new}"
    if from_type == to_type or is_widening(from_type, to_type):
        assert plan(configuration, sql).after.schema.field("c").data_type == to_type
        return
    with pytest.raises(SchemaChangeRefused) as caught:
        plan(configuration, sql)
    message = str(caught.value)
    assert f"column c cannot be changed from {old} to {new}" in message.replace(", ", ",")
    assert f"{old} can be widened" in message or f"{old} cannot be widened" in message
    assert "change_column converts" in message
    assert caught.value.column == "c"


UNSIGNED = ("uint8", "uint16", "uint32", "uint64")


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("TINYINT", "int16"), ("TINYINT", "int32"), ("TINYINT", "int64"), ("int16", "int32"),
        ("int16", "int64"), ("int32", "int64"), ("uint8", "uint16"), ("uint8", "uint32"),
        ("uint8", "uint64"), ("uint16", "uint32"), ("uint16", "uint64"), ("uint32", "uint64"),
        ("float32", "float64"),
    ],
)  # fmt: skip
def test_every_promotion_of_ducklake_is_one_here(source: str, target: str) -> None:
    after = plan(table(f"STRUCT<c: {source}>", WIDENING), f"ALTER c SET TYPE {target}").after
    assert after.schema.field("c").data_type == parse_type(target)


def test_a_key_does_not_change_in_another_way() -> None:
    with pytest.raises(SchemaChangeRefused, match="except keys of maps"):
        plan(table(), "ALTER m.key TYPE INT", enable_features=True)


def test_a_struct_is_not_rebuilt_by_its_type() -> None:
    with pytest.raises(SchemaChangeRefused, match="add, drop and rename fields"):
        plan(table(properties=WIDENING), "ALTER s TYPE STRUCT<x: INT>")


def test_partition_columns_are_widened() -> None:
    configuration = table(properties=WIDENING, partition_by=("p",))
    assert (
        str(plan(configuration, "ALTER p TYPE BIGINT").after.partition_schema) == "struct<p:long>"
    )


# Nullability, defaults, comments, order


def test_nulls_are_allowed_again_at_every_depth() -> None:
    field = StructField("a", parse_type("ARRAY<STRUCT<x: INT NOT NULL>>"), nullable=False)
    configuration = table(StructType((field,)))
    after = plan(configuration, "ALTER a DROP NOT NULL, ALTER a.element.x DROP NOT NULL").after
    assert after.schema.field("a").nullable
    assert all(each.nullable for _, each in walk_fields(after.schema))
    with pytest.raises(SchemaChangeRefused, match="map key"):
        plan(table(), "ALTER m.key DROP NOT NULL")
    with pytest.raises(SchemaChangeRefused, match="array or a map"):
        plan(table(), "ALTER tags.element.k SET NOT NULL")


def test_defaults_come_and_go() -> None:
    configuration = plan(table(), "ALTER id SET DEFAULT 7").after
    assert configuration.schema.field("id").metadata["CURRENT_DEFAULT"] == "7"
    for sql in ("ALTER id DROP DEFAULT", "ALTER id SET DEFAULT NULL"):
        assert "CURRENT_DEFAULT" not in plan(configuration, sql).after.schema.field("id").metadata
    with pytest.raises(InvalidArgument, match="not a value of type integer"):
        plan(table(), "ALTER p SET DEFAULT 'soon'")
    with pytest.raises(SchemaChangeRefused, match="only whole columns"):
        plan(table(), "ALTER s.x SET DEFAULT 1")


def test_a_default_of_a_type_that_is_never_stored_there_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"default of column id.*timestamp"):
        plan(table(), "ALTER id SET DEFAULT current_timestamp()")


def test_columns_move_within_their_struct() -> None:
    configuration = table("STRUCT<a: INT, b: INT, s: STRUCT<x: INT, y: INT>>")
    assert schema_after(configuration, "ALTER s FIRST, ALTER s.y FIRST, ALTER a AFTER b") == (
        "struct<s:struct<y:integer,x:integer>,b:integer,a:integer>"
    )


# The table as a whole


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("ADD CONSTRAINT c CHECK (nowhere > 1)", "no column nowhere"),
        ("ADD CONSTRAINT c CHECK (id + 1)", "condition"),
        ("ADD CONSTRAINT C CHECK (id > 1), ADD CONSTRAINT c CHECK (id > 2)", "already"),
        ("DROP CONSTRAINT c", "there are none"),
        ("DROP FEATURE checkConstraints, DROP c", "only action"),
        ("SET TBLPROPERTIES ('delta.constraints.c' = 'id > 1')", "ADD CONSTRAINT"),
    ],
)
def test_constraints_are_conditions_on_columns_that_are_there(sql: str, problem: str) -> None:
    with pytest.raises((InvalidArgument, SchemaMismatch), match=problem):
        plan(table(), sql)


def test_a_constraint_raises_the_protocol_and_has_rows_checked() -> None:
    done = plan(table(), "ADD CONSTRAINT Positive CHECK (id > 0)")
    assert done.after.protocol == Protocol(min_reader_version=1, min_writer_version=3)
    assert done.after.properties.constraints == {"positive": "id > 0"}
    assert [each.sql for each in done.checks] == ["id > 0"]


def test_the_description_is_a_comment_on_the_table() -> None:
    assert plan(table(), "COMMENT 'about'").after.metadata.description == "about"


def test_a_plan_tells_people_what_it_does() -> None:
    done = plan(
        table(),
        "ADD c INT DEFAULT 1, RENAME id TO ident, ALTER s.x TYPE BIGINT, DROP d, "
        "ALTER ident SET NOT NULL",
        enable_features=True,
    )
    report = done.to_markdown()
    for line in (
        "| add column c (integer DEFAULT 1) | existing files are rewritten |",
        "**Rewrites data**",
        "- every existing row must satisfy `NOT NULL ident`: ",
        "- property `delta.columnMapping.mode = name`",
        "+ c: integer DEFAULT 1",
        "~ id: renamed to ident",
        "~ id: NOT NULL",
        "~ s.x: byte → long",
        "- d: date",
    ):
        assert line in report
    changes = done.schema_changes
    assert changes.added == (("c",),)
    assert changes.dropped == (("d",),)
    assert changes.changed == (("id",), ("s", "x"))


def test_a_plan_without_effect_says_so() -> None:
    done = plan(table(), "DROP COLUMN IF EXISTS nothing")
    assert not done.changes_anything
    assert "nothing to commit" in done.to_markdown()


def test_unknown_metadata_survives() -> None:
    configuration = table(properties={"mine": "kept"})
    odd = StructField("o", parse_type("INT"), metadata={"unknown": {"a": 1}})
    metadata = msgspec.structs.replace(
        configuration.metadata,
        schema_string=StructType((odd, *configuration.schema)).to_json(),
    )
    after = plan(
        TableConfiguration(configuration.protocol, metadata),
        "ALTER o COMMENT 'c', RENAME o TO q, ALTER q TYPE BIGINT",
        enable_features=True,
    ).after
    assert after.schema.field("q").metadata["unknown"] == {"a": 1}
    assert after.metadata.configuration["mine"] == "kept"


@pytest.mark.parametrize(
    ("sql", "features", "switches"),
    [
        ("RENAME d TO day", ("columnMapping",), ("columnMapping",)),
        ("DROP d", ("columnMapping",), ("columnMapping",)),
        ("ALTER id TYPE BIGINT", ("typeWidening",), ("typeWidening",)),
        (
            "RENAME d TO day, ALTER id TYPE BIGINT, DROP p",
            ("columnMapping", "typeWidening"),
            ("columnMapping", "typeWidening"),
        ),
        ("ALTER id SET DEFAULT 1", ("allowColumnDefaults",), ()),
        ("ADD COLUMN n TIMESTAMP_NTZ", ("timestampNtz",), ()),
        ("ADD CONSTRAINT c CHECK (id > 0)", ("checkConstraints",), ()),
        ("CLUSTER BY (id)", ("clustering", "domainMetadata"), ()),
        ("SET TBLPROPERTIES (delta.columnMapping.mode = 'name')", ("columnMapping",), ()),
    ],
)
def test_a_dry_run_names_every_feature_and_what_has_to_be_turned_on(
    sql: str, features: tuple[str, ...], switches: tuple[str, ...]
) -> None:
    dry = plan(table(), sql, dry_run=True)
    assert dry.new_features == features
    assert tuple(each.name for each in dry.missing_switches) == switches
    text = dry.to_markdown()
    assert all(f"table feature `{each}`" in text for each in features)
    assert text.count("pass enable_features=True") == len(switches)
    # With leave to do so, the same plan is carried out.
    made = plan(table(), sql, enable_features=True)
    assert (made.after, made.new_features) == (dry.after, features)
    assert made.missing_switches == ()
