from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from dagster_delta import __version__
from dagster_delta.errors import (
    CatalogRequired,
    DeltaError,
    InvalidTable,
    UnsupportedFeature,
    UnsupportedReaderVersion,
    UnsupportedWriterVersion,
)
from dagster_delta.protocol.actions import Format, Metadata, Protocol
from dagster_delta.protocol.features.registry import (
    TABLE_FEATURES,
    TableFeature,
    check_readable,
    check_writable,
    effective_features,
    find_feature,
)
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import (
    DataType,
    PrimitiveType,
    StructField,
    StructType,
)
from tests.golden.answers import answer

LEGACY_WRITER_FEATURES = {
    1: set(),
    2: {"appendOnly", "invariants"},
    3: {"checkConstraints"},
    4: {"changeDataFeed", "generatedColumns"},
    5: set(),
    6: {"identityColumns"},
}


def legacy(reader: int, writer: int) -> Protocol:
    return Protocol(min_reader_version=reader, min_writer_version=writer)


def listing(*names: str, reader: bool = False) -> Protocol:
    return Protocol(
        min_reader_version=3 if reader else 1,
        min_writer_version=7,
        reader_features=names if reader else None,
        writer_features=names,
    )


def listing_of(row: TableFeature) -> Protocol:
    """A protocol that lists the feature and what it is built on."""
    names = (row.name,) if row.requires is None else (row.name, row.requires)
    return listing(*names, reader=row.is_reader_feature)


def table(
    protocol: Protocol,
    *,
    data_type: DataType | None = None,
    metadata: Mapping[str, object] | None = None,
    properties: Mapping[str, str] | None = None,
    partition_columns: Sequence[str] = (),
) -> TableConfiguration:
    field = StructField("c", data_type or PrimitiveType("long"), metadata=metadata or {})
    return TableConfiguration(
        protocol,
        Metadata(
            id="id",
            format=Format(),
            schema_string=StructType((field,)).to_json(),
            partition_columns=tuple(partition_columns),
            configuration=dict(properties or {}),
        ),
    )


def test_every_name_belongs_to_one_row() -> None:
    names = [name for each in TABLE_FEATURES for name in (each.name, *each.aliases)]
    assert len(names) == len(set(names))


def test_features_that_cannot_be_read_cannot_be_written() -> None:
    assert all(each.can_read or not each.can_write for each in TABLE_FEATURES)


@pytest.mark.parametrize("writer", range(1, 7))
def test_legacy_writer_version_implies_its_features_and_all_before(writer: int) -> None:
    expected = set().union(*(LEGACY_WRITER_FEATURES[each] for each in range(1, writer + 1)))
    assert effective_features(legacy(1, writer)) == expected


def test_column_mapping_is_implied_by_the_reader_version() -> None:
    assert "columnMapping" in effective_features(legacy(2, 5))
    assert "columnMapping" not in effective_features(legacy(1, 6))


def test_listed_features_replace_implied_ones() -> None:
    assert effective_features(listing("appendOnly")) == {"appendOnly"}


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("timestampNTZ", "timestampNtz"),
        ("typeWidening-preview", "typeWidening"),
        ("variantType-preview", "variantType"),
        ("catalogOwned-preview", "catalogManaged"),
    ],
)
def test_alias_counts_as_its_feature(alias: str, name: str) -> None:
    assert effective_features(listing(alias, reader=True)) == {name}
    assert table(listing(alias, reader=True)).supports(name)
    assert table(listing(alias, reader=True)).supports(alias)


@pytest.mark.parametrize("version", [-1, 0, 4, 99])
def test_unknown_reader_version_is_refused(version: int) -> None:
    with pytest.raises(UnsupportedReaderVersion) as caught:
        check_readable(legacy(version, 7), table="memory://t", version=3)
    assert (caught.value.table, caught.value.version) == ("memory://t", 3)


@pytest.mark.parametrize("version", [-1, 0, 8])
def test_unknown_writer_version_is_read_but_not_written(version: int) -> None:
    configuration = table(legacy(1, version))
    configuration.check_readable(table="t", version=0)
    with pytest.raises(UnsupportedWriterVersion):
        configuration.check_writable(table="t", version=0)


def test_unknown_reader_feature_is_refused_by_name_table_and_library_version() -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        check_readable(listing("telepathy", reader=True), table="memory://t", version=3)
    message = str(caught.value)
    assert "telepathy" in message
    assert "memory://t" in message
    assert __version__ in message


def test_unknown_writer_feature_is_read_but_not_written() -> None:
    configuration = table(listing("telepathy", "appendOnly"))
    configuration.check_readable(table="t", version=0)
    with pytest.raises(UnsupportedFeature, match="telepathy"):
        configuration.check_writable(table="t", version=0)


@pytest.mark.parametrize("name", ["catalogManaged", "catalogOwned", "catalogOwned-preview"])
def test_table_of_a_catalog_is_refused_by_path(name: str) -> None:
    with pytest.raises(CatalogRequired, match=name):
        check_readable(listing(name, reader=True), table="t", version=0)
    check_readable(listing(name, reader=True), table="t", version=0, in_catalog=True)


@pytest.mark.parametrize("row", TABLE_FEATURES, ids=lambda each: each.name)
def test_listed_feature_is_read_as_its_row_says(row: TableFeature) -> None:
    assert {find_feature(name) for name in (row.name, *row.aliases)} == {row}
    protocol = listing_of(row)
    if row.can_read:
        check_readable(protocol, table="t", version=0, in_catalog=row.needs_catalog)
    else:
        with pytest.raises(UnsupportedFeature):
            check_readable(protocol, table="t", version=0, in_catalog=row.needs_catalog)


@pytest.mark.parametrize("row", TABLE_FEATURES, ids=lambda each: each.name)
def test_listed_feature_is_written_as_its_row_says(row: TableFeature) -> None:
    protocol = listing_of(row)
    if row.can_write:
        check_writable(protocol, table="t", version=0, in_catalog=row.needs_catalog)
    else:
        with pytest.raises(UnsupportedFeature):
            check_writable(protocol, table="t", version=0, in_catalog=row.needs_catalog)


def test_leftover_of_a_feature_that_is_not_supported_is_no_obstacle() -> None:
    configuration = table(legacy(1, 2), metadata={"delta.generationExpression": "1"})
    configuration.check_writable(table="t", version=0)


@pytest.mark.parametrize(
    "protocol",
    [
        legacy(3, 7),
        Protocol(min_reader_version=3, min_writer_version=5, reader_features=()),
    ],
)
def test_contradicting_protocol_is_refused(protocol: Protocol) -> None:
    with pytest.raises(InvalidTable):
        check_readable(protocol, table="t", version=0)


def test_writer_version_7_without_a_list_is_not_written() -> None:
    with pytest.raises(InvalidTable, match="writerFeatures"):
        table(legacy(1, 7)).check_writable(table="t", version=0)


ERRORS: dict[str, type[DeltaError]] = {
    "unsupported_reader_version": UnsupportedReaderVersion,
    "unsupported_feature": UnsupportedFeature,
    "catalog_required": CatalogRequired,
}


def _actions(root: Path) -> Iterator[dict[str, object]]:
    for log in sorted((root / "_delta_log").glob("*.json")):
        if log.name.count(".") == 1 and log.stem.isdigit():
            for line in log.read_bytes().splitlines():
                try:
                    yield msgspec.json.decode(line)
                except msgspec.DecodeError:
                    continue


def test_every_real_table_is_accepted_or_refused_as_it_should_be(golden_tables: Path) -> None:
    seen = 0
    for expectation in sorted(golden_tables.glob("*/expected.json")):
        latest: dict[str, object] = {}
        for action in _actions(expectation.parent / "table"):
            latest.update(action)
        if not {"protocol", "metaData"} <= latest.keys():
            continue
        seen += 1
        configuration = TableConfiguration(
            msgspec.convert(latest["protocol"], Protocol),
            msgspec.convert(latest["metaData"], Metadata),
        )
        name = expectation.parent.name
        kind = (answer(name)["expected_error"] or {}).get("kind")
        if kind in ERRORS:
            with pytest.raises(ERRORS[kind]):
                configuration.check_readable(table=name, version=0)
        else:
            configuration.check_readable(table=name, version=0)
            configuration.properties.validate()
    assert seen > 150
