"""Which changes of a schema leave older rows readable."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dagster_delta.protocol.actions import Format, Metadata, Protocol
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema_compatibility import find_incompatibility


def column(
    name: str, kind: Any = "long", *, physical: str | None = None, nullable: bool = True
) -> Any:
    metadata = {} if physical is None else {"delta.columnMapping.physicalName": physical}
    return {"name": name, "type": kind, "nullable": nullable, "metadata": metadata}


def struct(*fields: Any) -> Any:
    return {"type": "struct", "fields": list(fields)}


def array(element: Any, *, nulls: bool = True) -> Any:
    return {"type": "array", "elementType": element, "containsNull": nulls}


def mapping(value: Any, *, nulls: bool = True) -> Any:
    return {"type": "map", "keyType": "string", "valueType": value, "valueContainsNull": nulls}


def table(
    *fields: Any, mode: str = "none", partition_by: tuple[str, ...] = ()
) -> TableConfiguration:
    return TableConfiguration(
        Protocol(min_reader_version=2, min_writer_version=5),
        Metadata(
            id="t",
            format=Format(),
            schema_string=json.dumps(struct(*fields)),
            partition_columns=partition_by,
            configuration={"delta.columnMapping.mode": mode},
        ),
    )


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        (column("a"), column("a")),
        (column("a"), column("A")),
        (column("a", "short"), column("a", "long")),
        (column("a", "void"), column("a", "string")),
        (column("a", nullable=False), column("a")),
        (column("a", struct(column("x"))), column("a", struct(column("y"), column("x")))),
        (column("a", array("byte", nulls=False)), column("a", array("integer"))),
        (
            column("a", mapping(struct(column("x", "float")))),
            column("a", mapping(struct(column("x", "double")))),
        ),
    ],
)
def test_added_columns_wider_types_and_looser_nulls_are_read(older: Any, newer: Any) -> None:
    assert find_incompatibility(table(older), table(column("new"), newer)) is None


@pytest.mark.parametrize(
    ("older", "newer", "reason"),
    [
        (column("a"), column("b"), "column a was dropped"),
        (column("a"), column("a", "string"), "column a was of type long and is of type string"),
        (column("a"), column("a", "integer"), "column a was of type long"),
        (column("a"), column("a", nullable=False), "column a could hold nulls and is NOT NULL"),
        (
            column("a", struct(column("x"))),
            column("a", struct(column("y"))),
            "column a.x was dropped",
        ),
        (column("a", array("long")), column("a", array("string")), "column a.element was of type"),
        (
            column("a", array("long")),
            column("a", array("long", nulls=False)),
            "column a.element could",
        ),
        (column("a", mapping("long")), column("a", mapping("date")), "column a.value was of type"),
        (
            column("a", mapping("long")),
            column("a", mapping("long", nulls=False)),
            "column a.value could",
        ),
        (column("a", array("long")), column("a", "long"), "column a was of type array<long>"),
    ],
)
def test_other_changes_are_named(older: Any, newer: Any, reason: str) -> None:
    found = find_incompatibility(table(older), table(newer))
    assert found is not None
    assert found.startswith(reason)


def test_mapped_columns_are_followed_by_their_physical_names() -> None:
    older = table(column("a", physical="p1"), column("b", physical="p2"), mode="name")

    def after(*fields: Any) -> str | None:
        return find_incompatibility(older, table(*fields, mode="name"))

    a, b = column("a", physical="p1"), column("b", physical="p2")
    assert after(b, a, column("c", physical="p3")) is None
    assert after(column("z", physical="p1"), b) == "column a was renamed to z"
    assert after(b) == "column a was dropped"
    # Dropped, and added again under the same name.
    assert after(column("a", physical="p9"), b) == "column a was dropped"
    # Swapped by two renames.
    assert after(column("b", physical="p1"), column("a", physical="p2")) == (
        "column a was renamed to b"
    )


def test_turning_mapping_on_keeps_rows_readable_and_turning_it_off_does_not() -> None:
    plain, mapped = table(column("a")), table(column("a", physical="a"), mode="name")
    assert find_incompatibility(plain, mapped) is None
    assert find_incompatibility(mapped, plain) == "column mapping was turned off"
    assert find_incompatibility(plain, table(column("a", physical="p"), mode="name")) == (
        "column a was dropped"
    )


def test_another_partitioning_is_named() -> None:
    older = table(column("a"), column("b"), partition_by=("a",))
    assert find_incompatibility(older, table(column("A"), column("b"), partition_by=("A",))) is None
    assert find_incompatibility(older, table(column("a"), column("b"))) == (
        "the table was partitioned by a and is partitioned by nothing"
    )
