"""Tables below a directory are found once, and what cannot be searched is an error of ours."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_delta.errors import StorageFailure
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.table_discovery import find_tables


def test_a_link_to_a_directory_above_is_not_followed(tmp_path: Path) -> None:
    table = tmp_path / "raw" / "events"
    DeltaTable(str(table), must_exist=False).append(pa.table({"id": [1]}))
    (tmp_path / "raw" / "again").symlink_to(tmp_path)
    assert find_tables(str(tmp_path)) == [str(table)]


def test_a_directory_that_cannot_be_listed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "closed").mkdir()
    scan = os.scandir

    def refuse(path: Path) -> Any:
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(StorageFailure, match="closed"):
        find_tables(str(tmp_path))
