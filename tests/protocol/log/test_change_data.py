"""Which files of a commit hold its row changes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dagster_delta.errors import InvalidTable
from dagster_delta.protocol.actions import (
    AddCDCFile,
    AddFile,
    DeletionVectorDescriptor,
    RemoveFile,
)
from dagster_delta.protocol.log.change_data import (
    CHANGE_FILE_SCHEMA,
    FileChange,
    change_file_batch,
    file_changes,
    may_have_moved,
)
from dagster_delta.protocol.log.commit_file import CommitActions
from dagster_delta.protocol.schema import data_type_from_json


def vector(name: str) -> DeletionVectorDescriptor:
    return DeletionVectorDescriptor(
        storage_type="i", path_or_inline_dv=name, size_in_bytes=1, cardinality=1
    )


def name_of(dv: DeletionVectorDescriptor | None) -> str | None:
    return None if dv is None else dv.path_or_inline_dv


def add(path: str, dv: str | None = None, *, data_change: bool = True) -> AddFile:
    return AddFile(
        path=path,
        partition_values={"p": "1"},
        size_bytes=5,
        modification_time_ms=1,
        data_change=data_change,
        deletion_vector=None if dv is None else vector(dv),
    )


def remove(path: str, dv: str | None = None, *, data_change: bool = True) -> RemoveFile:
    return RemoveFile(
        path=path,
        partition_values={"p": "1"},
        size_bytes=5,
        data_change=data_change,
        deletion_vector=None if dv is None else vector(dv),
    )


def changes(**actions: Any) -> list[tuple[str, str | None, str | None, str | None]]:
    """Path, change type, vector and selection of every file."""
    return [
        (
            each.path,
            each.change_type,
            name_of(each.deletion_vector),
            name_of(each.selection),
        )
        for each in file_changes(CommitActions(1, **actions), partitioned=True)
    ]


def test_change_data_files_hide_the_other_file_actions() -> None:
    cdc = AddCDCFile(path="_change_data/c", partition_values={}, size_bytes=1)
    assert changes(cdc=(cdc,), adds=(add("a"),), removes=(remove("b"),)) == [
        ("_change_data/c", None, None, None)
    ]


def test_rows_that_left_come_before_rows_that_came() -> None:
    assert changes(adds=(add("a", "x"),), removes=(remove("b", "y"),)) == [
        ("b", "delete", "y", None),
        ("a", "insert", "x", None),
    ]


def test_actions_that_change_no_data_are_left_out() -> None:
    rearranged = {"adds": (add("a", data_change=False),)}
    assert changes(**rearranged, removes=(remove("b", data_change=False),)) == []


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (None, "x", [("delete", None, "x")]),
        ("x", None, [("insert", None, "x")]),
        ("x", "y", [("delete", "x", "y"), ("insert", "y", "x")]),
        ("x", "x", []),
        (None, None, []),
    ],
)
def test_a_file_that_stays_has_changed_where_its_vectors_differ(
    before: str | None, after: str | None, expected: list[tuple[str, str | None, str]]
) -> None:
    found = changes(adds=(add("a", after),), removes=(remove("a", before),))
    assert found == [("a", *each) for each in expected]


def test_two_spellings_of_an_absolute_path_are_one_file() -> None:
    assert changes(adds=(add("file:///a", "x"),), removes=(remove("file:/a"),)) == [
        ("file:/a", "delete", None, "x")
    ]


def test_a_removed_file_of_an_unknown_partition_is_refused() -> None:
    bare = RemoveFile(path="a", data_change=True)
    with pytest.raises(InvalidTable) as caught:
        changes(removes=(bare,))
    assert caught.value.file == "a"
    assert file_changes(CommitActions(1, removes=(bare,)), partitioned=False)[0].size_bytes == 0


def test_files_and_constants_stand_side_by_side_in_a_batch() -> None:
    both = file_changes(
        CommitActions(1, adds=(add("a", "y"),), removes=(remove("a", "x"),)), partitioned=True
    )
    batch = change_file_batch([(7, each, {"_k": each.change_type or ""}) for each in both])
    assert batch.schema == CHANGE_FILE_SCHEMA
    assert batch["partition_values"].to_pylist() == [
        [("p", "1"), ("_k", "delete")],
        [("p", "1"), ("_k", "insert")],
    ]
    assert batch["commit_version"].to_pylist() == [7, 7]
    assert [each["path_or_inline_dv"] for each in batch["selection"].to_pylist()] == ["y", "x"]


@pytest.mark.parametrize(
    ("data_type", "texts"),
    [
        ("timestamp", ("2021-10-01 08:09:20", "2021-10-01T08:09:20.000000Z")),
        ("timestamp_ntz", ("2021-10-01 08:09:20", "2021-10-01 08:09:20.000000")),
        ("decimal(9,2)", ("1.5", "1.50")),
        ("double", ("1", "1.0")),
        ("double", ("NaN", "NaN")),
        ("integer", ("", None)),
    ],
)
def test_rows_may_have_moved_within_a_partition_of_several_spellings(
    data_type: str, texts: tuple[str | None, ...]
) -> None:
    types = [("p", data_type_from_json(data_type))]
    left, came = (
        FileChange(kind, {"p": text}, 1, kind)
        for kind, text in zip(("delete", "insert"), texts, strict=True)
    )
    elsewhere = FileChange("elsewhere", {"p": "2"}, 1, "insert")
    if data_type.startswith("timestamp"):
        elsewhere = msgspec.structs.replace(
            elsewhere, partition_values={"p": "2021-10-02 00:00:00"}
        )
    assert may_have_moved([left, came, elsewhere], types) == [True, True, False]
    assert may_have_moved([left, elsewhere], types) == [False, False]
