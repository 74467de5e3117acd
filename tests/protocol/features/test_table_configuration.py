from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence

import pytest

from dagster_delta.errors import InvalidTable, SchemaMismatch, UnsupportedFeature
from dagster_delta.protocol.actions import Format, Metadata, Protocol
from dagster_delta.protocol.features.column_mapping import PHYSICAL_NAME_KEY
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import (
    ArrayType,
    DataType,
    PrimitiveType,
    StructField,
    StructType,
)

LONG = PrimitiveType("long")
MAPPING = {"delta.columnMapping.mode": "name"}


def field(
    name: str,
    data_type: DataType = LONG,
    *,
    nullable: bool = True,
    metadata: Mapping[str, object] | None = None,
) -> StructField:
    return StructField(name, data_type, nullable, metadata or {})


def table(
    *fields: StructField,
    protocol: tuple[int, int] = (1, 2),
    features: Sequence[str] | None = None,
    partition_columns: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
) -> TableConfiguration:
    names = None if features is None else tuple(features)
    reader, writer = (3, 7) if features is not None else protocol
    return TableConfiguration(
        Protocol(
            min_reader_version=reader,
            min_writer_version=writer,
            reader_features=names,
            writer_features=names,
        ),
        Metadata(
            id="id",
            format=Format(),
            schema_string=StructType(fields).to_json(),
            partition_columns=tuple(partition_columns),
            configuration=dict(properties or {}),
        ),
    )


def check(configuration: TableConfiguration) -> None:
    configuration.check_readable(table="memory://t", version=5)


def test_partition_columns_leave_the_data_schema_in_directory_order() -> None:
    configuration = table(field("a"), field("Day"), field("b"), partition_columns=["b", "day"])
    assert configuration.partition_columns == ("b", "Day")
    assert configuration.partition_schema.names == ("b", "Day")
    assert configuration.data_schema.names == ("a",)
    assert configuration.physical_partition_columns == ("b", "Day")


def test_partition_column_outside_the_schema_is_refused() -> None:
    with pytest.raises(InvalidTable) as caught:
        check(table(field("a"), partition_columns=["b"]))
    error = caught.value
    assert (error.table, error.version, error.column) == ("memory://t", 5, "b")


@pytest.mark.parametrize(
    "fields",
    [
        (field("a"), field("A")),
        (field("s", StructType((field("x"), field("X")))),),
        (field("s", ArrayType(StructType((field("é"), field("É"))))),),
    ],
)
def test_columns_that_differ_in_case_alone_are_refused(fields: tuple[StructField, ...]) -> None:
    with pytest.raises(InvalidTable, match="two columns"):
        check(table(*fields))


def test_unknown_feature_is_named_before_a_schema_nobody_can_parse() -> None:
    configuration = table(features=["telepathy"])
    metadata = Metadata(
        id="id",
        format=Format(),
        schema_string='{"type":"struct","fields":[{"name":"t","type":"thought"}]}',
        partition_columns=(),
        configuration={},
    )
    with pytest.raises(UnsupportedFeature, match="telepathy"):
        check(TableConfiguration(configuration.protocol, metadata))


@pytest.mark.parametrize(
    ("protocol", "mode"), [((1, 2), "none"), ((1, 6), "none"), ((2, 5), "name"), ((2, 6), "name")]
)
def test_mapping_mode_counts_only_where_the_protocol_supports_it(
    protocol: tuple[int, int], mode: str
) -> None:
    assert table(protocol=protocol, properties=MAPPING).column_mapping_mode == mode


def test_mapping_mode_counts_where_the_feature_is_listed() -> None:
    assert table(features=["columnMapping"], properties=MAPPING).column_mapping_mode == "name"
    assert table(features=["appendOnly"], properties=MAPPING).column_mapping_mode == "none"


def test_physical_names_follow_the_mapping() -> None:
    mapped = field("day", metadata={PHYSICAL_NAME_KEY: "col-1"})
    on = table(mapped, protocol=(2, 5), properties=MAPPING, partition_columns=["day"])
    off = table(mapped, protocol=(1, 2), properties=MAPPING, partition_columns=["day"])
    assert (on.physical_name("Day"), on.physical_partition_columns) == ("col-1", ("col-1",))
    assert (off.physical_name("Day"), off.physical_partition_columns) == ("day", ("day",))
    with pytest.raises(SchemaMismatch):
        on.physical_name("night")


def test_nested_field_without_physical_name_is_refused() -> None:
    outer = field("s", StructType((field("x"),)), metadata={PHYSICAL_NAME_KEY: "col-1"})
    with pytest.raises(InvalidTable, match="physical name"):
        check(table(outer, protocol=(2, 5), properties=MAPPING))


def test_invariants_are_found_at_every_depth() -> None:
    metadata = {"delta.invariants": '{"expression":{"expression":"x > 3"}}'}
    configuration = table(field("s", StructType((field("x", metadata=metadata),))))
    assert configuration.invariants == (("s.x", "x > 3"),)


def test_invariants_mean_nothing_where_the_protocol_does_not_support_them() -> None:
    metadata = {"delta.invariants": "broken"}
    assert table(field("x", metadata=metadata), protocol=(1, 1)).invariants == ()


@pytest.mark.parametrize("text", ["broken", "{}", '{"expression":{"expression":1}}'])
def test_damaged_invariant_is_refused(text: str) -> None:
    with pytest.raises(InvalidTable) as caught:
        _ = table(field("x", metadata={"delta.invariants": text})).invariants
    assert caught.value.column == "x"


def test_not_null_columns_are_found_through_structs_only() -> None:
    inner = StructType((field("x", nullable=False), field("y")))
    configuration = table(
        field("a", nullable=False), field("s", inner), field("list", ArrayType(inner))
    )
    assert configuration.not_null_columns == (("a",), ("s", "x"))


@pytest.mark.parametrize(
    ("feature", "key", "attribute"),
    [
        ("deletionVectors", "delta.enableDeletionVectors", "deletion_vectors_enabled"),
        ("changeDataFeed", "delta.enableChangeDataFeed", "change_data_feed_enabled"),
        ("typeWidening-preview", "delta.enableTypeWidening", "type_widening_enabled"),
        ("inCommitTimestamp", "delta.enableInCommitTimestamps", "in_commit_timestamps_enabled"),
        ("rowTracking", "delta.enableRowTracking", "row_tracking_enabled"),
        ("appendOnly", "delta.appendOnly", "append_only"),
    ],
)
def test_feature_is_enabled_by_support_and_property_together(
    feature: str, key: str, attribute: str
) -> None:
    enabled = {key: "true"}
    assert getattr(table(features=[feature], properties=enabled), attribute)
    assert not getattr(table(features=[feature]), attribute)
    assert not getattr(table(features=[], properties=enabled), attribute)


def test_type_change_outside_the_list_is_refused_where_widening_is_supported() -> None:
    changed = field("c", metadata={"delta.typeChanges": [{"fromType": "string", "toType": "long"}]})
    with pytest.raises(UnsupportedFeature, match="string to long") as caught:
        check(table(changed, features=["typeWidening"]))
    assert (caught.value.table, caught.value.column) == ("memory://t", "c")
    check(table(changed))


def test_configuration_travels_to_executors_without_its_parsed_values() -> None:
    configuration = table(field("a"), partition_columns=["a"])
    fresh = len(pickle.dumps(configuration))
    check(configuration)
    _ = configuration.data_schema, configuration.properties
    copy = pickle.loads(pickle.dumps(configuration))
    assert copy == configuration
    assert copy.partition_columns == ("a",)
    assert len(pickle.dumps(configuration)) == fresh


def test_table_that_was_shipped_without_a_schema_has_no_columns() -> None:
    metadata = Metadata(id="id", format=Format(), partition_columns=(), configuration={})
    configuration = TableConfiguration(
        Protocol(min_reader_version=1, min_writer_version=2), metadata
    )
    check(configuration)
    assert configuration.schema == StructType(())
