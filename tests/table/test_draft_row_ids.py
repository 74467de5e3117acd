"""Tables by the draft of row tracking, `rowIds`: ids are read, and the table is not written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dagster_delta import DeltaTable
from dagster_delta.errors import InvalidTable, UnsupportedFeature
from dagster_delta.protocol.log.paths import commit_path
from tests.sample_tables import rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRACKED = {"delta.enableRowTracking": "true"}


def draft_table(root: Path, *, names_column: bool = True) -> DeltaTable:
    """A table with row tracking, whose log says the same in the words of the draft."""
    table = DeltaTable.create(str(root), rows().schema, properties=TRACKED)
    table.append(rows(0, 1, 2))
    table.append(rows(3))
    table.update({"v": "'new'"}, "id = 1")
    for version in range(table.version() + 1):
        log = root / commit_path(version)
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        drafts = [_as_draft(line, names_column) for line in lines if "domainMetadata" not in line]
        log.write_text("".join(json.dumps(line) + "\n" for line in drafts))
        (root / commit_path(version).replace(".json", ".crc")).unlink()
    return DeltaTable(str(root))


def _as_draft(line: dict[str, Any], names_column: bool) -> dict[str, Any]:
    line.get("commitInfo", {}).pop("contentCrc32", None)
    line.get("add", {}).pop("defaultRowCommitVersion", None)
    if "protocol" in line:
        features = line["protocol"]["writerFeatures"]
        features[features.index("rowTracking")] = "rowIds"
    if "metaData" in line:
        configuration = line["metaData"]["configuration"]
        column = configuration.pop("delta.rowTracking.materializedRowIdColumnName")
        configuration["delta.enableRowIds"] = "true"
        if names_column:
            configuration["delta.rowIds.physicalColumnName"] = column
    return line


def test_ids_are_read_and_the_table_is_not_written(tmp_path: Path, spark: SparkSession) -> None:
    table = draft_table(tmp_path)
    scan = table.snapshot().scan(["id"], row_ids=True)
    assert scan.schema.names == ("id", "_row_id")
    expected = [(0, 0), (1, 1), (2, 2), (3, 3)]
    found = scan.to_arrow()
    assert sorted(zip(*(found[name].to_pylist() for name in found.column_names), strict=True)) == (
        expected
    )
    assert sorted(map(tuple, scan.to_spark(spark).collect())) == expected
    with pytest.raises(UnsupportedFeature, match="rowIds"):
        table.append(rows(4))


def test_enabled_ids_without_a_column_are_refused(tmp_path: Path) -> None:
    table = draft_table(tmp_path, names_column=False)
    with pytest.raises(InvalidTable, match="physicalColumnName"):
        table.snapshot().scan(row_ids=True)
