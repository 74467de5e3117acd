"""Row ids as the log keeps them: assigned once, never twice, and carried where rows move."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_delta.errors import InvalidTable
from dagster_delta.protocol.actions import AddFile, Format, Metadata, Protocol
from dagster_delta.protocol.features.row_tracking import (
    ROW_COMMIT_VERSION_COLUMN_KEY,
    ROW_ID_COLUMN_KEY,
    assign_row_ids,
    carried_columns,
    high_water_mark_domain,
    materialized_columns,
    parse_high_water_mark,
    tracked_configuration,
    with_materialized_columns,
)
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.commit_file import CommitContents
from dagster_delta.protocol.log.commit_writer import CommitSlot, PendingActions
from dagster_delta.protocol.schema import PrimitiveType, StructField, StructType


def add(number: int, num_records: int | None, base_row_id: int | None = None) -> AddFile:
    stats = None if num_records is None else json.dumps({"numRecords": num_records})
    return AddFile(
        path=f"f{number}",
        partition_values={},
        size_bytes=1,
        modification_time_ms=0,
        data_change=True,
        stats=stats,
        base_row_id=base_row_id,
        default_row_commit_version=None if base_row_id is None else 1,
    )


def configuration(properties: dict[str, str], *features: str) -> TableConfiguration:
    schema = StructType((StructField("id", PrimitiveType("long")),))
    return TableConfiguration(
        Protocol(min_reader_version=1, min_writer_version=7, writer_features=features),
        Metadata(
            id="t",
            format=Format(),
            schema_string=schema.to_json(),
            partition_columns=(),
            configuration=properties,
        ),
    )


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=20), st.integers(-1, 10**12))
def test_no_id_is_given_twice_and_those_of_old_files_stay(
    files: list[tuple[int, bool]], highest: int
) -> None:
    adds = [
        add(number, count, 7 if is_old else None) for number, (count, is_old) in enumerate(files)
    ]
    assigned, mark = assign_row_ids(adds, version=9, highest=highest)
    fresh: list[int] = []
    for each, (count, is_old) in zip(assigned, files, strict=True):
        assert each.base_row_id is not None
        if is_old:
            assert (each.base_row_id, each.default_row_commit_version) == (7, 1)
        else:
            assert each.default_row_commit_version == 9
            fresh += range(each.base_row_id, each.base_row_id + count)
    assert fresh == list(range(highest + 1, mark + 1))


def test_a_file_that_does_not_count_its_rows_gets_no_ids() -> None:
    with pytest.raises(InvalidTable, match="f0"):
        assign_row_ids([add(0, None)], version=1, highest=-1)


@given(st.integers(-1, 2**63 - 1))
def test_the_high_water_mark_comes_back_from_its_domain(highest: int) -> None:
    assert parse_high_water_mark([high_water_mark_domain(highest)]) == highest


def test_a_damaged_high_water_mark_is_refused_and_a_removed_one_is_none() -> None:
    domain = high_water_mark_domain(3)
    with pytest.raises(InvalidTable, match=r"delta\.rowTracking"):
        parse_high_water_mark([msgspec.structs.replace(domain, configuration="{}")])
    assert parse_high_water_mark([msgspec.structs.replace(domain, removed=True)]) == -1


def test_ids_follow_those_of_the_winner_of_a_race() -> None:
    pending = PendingActions(CommitContents(adds=(add(0, 10),)), tracks_rows=True)
    first = pending.settle(CommitSlot(3, None, 4))
    second = pending.settle(CommitSlot(4, None, 20))
    assert (first.adds[0].base_row_id, second.adds[0].base_row_id) == (5, 21)
    assert second.adds[0].default_row_commit_version == 4
    assert parse_high_water_mark(second.domain_metadata) == 30


def test_columns_are_named_once() -> None:
    names = iter(["a", "b", "c", "d"])
    named = with_materialized_columns({}, lambda: next(names))
    assert with_materialized_columns(named, lambda: next(names)) == named


def test_only_a_tracked_configuration_carries_ids() -> None:
    properties = {
        "delta.enableRowTracking": "true",
        ROW_ID_COLUMN_KEY: "_id",
        ROW_COMMIT_VERSION_COLUMN_KEY: "_version",
    }
    table = configuration(properties, "rowTracking", "domainMetadata")
    tracked = tracked_configuration(table)
    assert carried_columns(table) is None
    assert carried_columns(tracked) == materialized_columns(table)
    assert tracked.schema.names == ("id", "_id", "_version")
    assert tracked_configuration(tracked) is tracked
    untracked = configuration({}, "rowTracking", "domainMetadata")
    assert tracked_configuration(untracked) is untracked


def test_a_table_that_tracks_rows_and_names_no_columns_is_refused() -> None:
    table = configuration({"delta.enableRowTracking": "true"}, "rowTracking", "domainMetadata")
    with pytest.raises(InvalidTable, match="not name the columns"):
        tracked_configuration(table)
