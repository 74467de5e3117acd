"""Locations that hold no table: errors say what is there, and what to do."""

from __future__ import annotations

import errno
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.errors import InvalidArgument, StorageFailure, TableNotFound

ROWS = pa.table({"id": [1]})


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        DeltaTable(str(tmp_path / "lake" / name), must_exist=False).append(ROWS)
    (tmp_path / "file").write_text("")
    (tmp_path / "empty" / "_delta_log").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(
    ("place", "hint"),
    [
        ("lake", "; there are tables in this directory: a, b"),
        ("missing", "create the table first"),
        ("empty", "create the table first"),
    ],
)
def test_what_is_at_a_location_without_a_table_is_named(lake: Path, place: str, hint: str) -> None:
    with pytest.raises(TableNotFound) as caught:
        DeltaTable(str(lake / place))
    assert hint in caught.value.message


def test_the_log_of_a_table_is_no_table(lake: Path) -> None:
    for must_exist in (True, False):
        with pytest.raises(InvalidArgument, match=r"give the location of the table, .*/lake/a "):
            DeltaTable(str(lake / "lake" / "a" / "_delta_log"), must_exist=must_exist)


def test_a_write_to_a_file_says_that_the_location_has_a_file(lake: Path) -> None:
    for place in ("file", "file/table"):
        with pytest.raises(StorageFailure, match="a part of the location is a file: choose"):
            DeltaTable(str(lake / place), must_exist=False).append(ROWS)


def test_a_name_that_is_too_long_for_the_disk_says_what_to_shorten(lake: Path) -> None:
    table = DeltaTable(str(lake / "long"), must_exist=False)
    with pytest.raises(StorageFailure, match="partition the table by shorter values"):
        table.append(pa.table({"p": ["x" * 300], "v": [1]}), partition_by=["p"])
    with pytest.raises(StorageFailure, match="give the table a shorter name"):
        DeltaTable(str(lake / ("y" * 300)))


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_lack_of_rights_says_so(code: int) -> None:
    error = StorageFailure.of_system(OSError(code, "no"), "The file system failed")
    assert "give the user of this process the right to it" in str(error)


def test_a_scheme_that_does_not_exist_says_which_there_are() -> None:
    with pytest.raises(
        InvalidArgument, match=r"no storage s4://; tables are on local paths, s3://"
    ):
        DeltaTable("s4://bucket/table")
