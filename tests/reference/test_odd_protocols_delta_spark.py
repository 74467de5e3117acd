"""Protocols and schemas made by hand: what delta-spark opens is opened, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_delta import DeltaTable
from dagster_delta.errors import InvalidTable, UnsupportedFeature

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DV, NTZ, MAPPING = "deletionVectors", "timestampNtz", "columnMapping"

OPENED: dict[str, tuple[Any, ...]] = {
    "a feature of both in the writers' list alone": (3, 7, [], [DV, NTZ]),
    "a feature of both without a list for readers": (1, 7, None, [DV, MAPPING]),
    "empty lists": (3, 7, [], []),
    "a feature twice": (3, 7, [DV, DV], [DV]),
    "an unknown feature of writers": (1, 7, None, ["telepathy"]),
    "a preview without what it is built on": (3, 7, ["variantShredding-preview"], ["variantShredding-preview"]),
    "odd versions": (2, 1, None, None),
}  # fmt: skip
REFUSED: dict[str, tuple[type[Exception], tuple[Any, ...]]] = {
    "a reader's list before version 3": (InvalidTable, (2, 7, [MAPPING], [MAPPING])),
    "an empty one": (InvalidTable, (1, 7, [], [])),
    "a writer's list before version 7": (InvalidTable, (1, 2, None, ["appendOnly"])),
    "version 7 without a list": (InvalidTable, (1, 7, None, None)),
    "version 3 without a list": (InvalidTable, (3, 7, None, [DV])),
    "version 3 below version 7": (InvalidTable, (3, 6, [DV], [DV])),
    "a feature of writers among those of readers": (UnsupportedFeature, (3, 7, ["appendOnly"], ["appendOnly"])),
    "an unknown feature of readers": (UnsupportedFeature, (3, 7, ["telepathy"], ["telepathy"])),
    "clustering without domains": (InvalidTable, (1, 7, None, ["clustering"])),
    "row tracking without domains": (InvalidTable, (1, 7, None, ["rowTracking"])),
    "Iceberg without column mapping": (InvalidTable, (2, 7, None, ["icebergCompatV2"])),
    "Iceberg with column mapping for readers": (InvalidTable, (3, 7, [MAPPING], ["icebergCompatV1"])),
    "a feature of readers that writers may ignore": (InvalidTable, (3, 7, [DV], [])),
    "another one in the writers' list": (InvalidTable, (3, 7, [MAPPING], [DV])),
    "shredding without variants": (InvalidTable, (3, 7, ["variantShredding"], ["variantShredding"])),
}  # fmt: skip
OPENED_BY_DELTA_SPARK = {
    "a feature of readers that writers may ignore",
    "another one in the writers' list",
}


def make(directory: Path, protocol: tuple[Any, ...], second: str = "long", **add: object) -> str:
    """A table of one file and one commit."""
    log = directory / "_delta_log"
    log.mkdir(parents=True)
    file = directory / "f.parquet"
    pq.write_table(pa.table({"id": pa.array([1, 2, 3], pa.int64())}), file)
    names = ("minReaderVersion", "minWriterVersion", "readerFeatures", "writerFeatures")
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in (("id", "long"), ("second", second))
    ]
    metadata = {
        "id": directory.name,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "configuration": {},
    }
    live = {
        "path": file.name,
        "partitionValues": {},
        "size": file.stat().st_size,
        "modificationTime": 1,
        "dataChange": True,
        "stats": '{"numRecords":3}',
        **add,
    }
    said = {name: value for name, value in zip(names, protocol, strict=True) if value is not None}
    actions = [{"protocol": said}, {"metaData": metadata}, {"add": live}]
    (log / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)))
    return str(directory)


def ids_by_spark(session: SparkSession, uri: str) -> list[int]:
    return sorted(row[0] for row in session.read.format("delta").load(uri).select("id").collect())


def ids_by_us(uri: str) -> list[int]:
    found = DeltaTable(uri).snapshot().scan(["id"]).to_arrow()["id"].to_pylist()
    return sorted(int(value) for value in found)


@pytest.mark.exhaustive
def test_odd_protocols_are_opened_where_delta_spark_opens_them(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    for index, (name, protocol) in enumerate(OPENED.items()):
        uri = make(tmp_path / str(index), protocol)
        assert ids_by_spark(delta_spark, uri) == ids_by_us(uri) == [1, 2, 3], name


def test_protocols_that_contradict_themselves_are_refused_where_delta_spark_refuses_them(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    for index, (name, (kind, protocol)) in enumerate(REFUSED.items()):
        uri = make(tmp_path / str(index), protocol)
        if name not in OPENED_BY_DELTA_SPARK:
            with pytest.raises(Exception, match=r"o\d|DELTA|DECODING"):
                ids_by_spark(delta_spark, uri)
        with pytest.raises(kind) as caught:
            ids_by_us(uri)
        assert caught.type is kind, name


VECTOR = {
    "storageType": "i",
    "pathOrInlineDv": "^Bg9^0rr910000000000iXQKl0rr91000005c8Xg0rr91",
    "sizeInBytes": 34,
    "cardinality": 1,
}


@pytest.mark.parametrize("protocol", [(3, 7, [DV], [DV]), (3, 7, [], [DV]), (1, 7, None, [DV])])
@pytest.mark.examples(2)
def test_the_list_of_writers_is_enough_for_deletion_vectors_to_count(
    delta_spark: SparkSession, tmp_path: Path, protocol: tuple[Any, ...]
) -> None:
    uri = make(tmp_path / "t", protocol, deletionVector=VECTOR)
    assert ids_by_spark(delta_spark, uri) == ids_by_us(uri) == [1, 3]


def test_deletion_vectors_that_no_protocol_announces_are_refused(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    uri = make(tmp_path / "t", (1, 2, None, None), deletionVector=VECTOR)
    assert ids_by_spark(delta_spark, uri) == [1, 2, 3]
    assert delta_spark.read.format("delta").load(uri).count() == 2, "and counts other rows"
    table = DeltaTable(uri)
    for change in (lambda: ids_by_us(uri), lambda: table.delete("id = 1"), table.optimize):
        with pytest.raises(InvalidTable, match="deletionVectors") as caught:
            change()
        assert caught.value.file == "f.parquet"
    with pytest.raises(InvalidTable, match="deletionVectors"):
        table.snapshot().scan().to_spark(delta_spark).collect()
    assert table.version() == 0


def test_a_column_mapping_that_no_protocol_announces_is_refused(tmp_path: Path) -> None:
    uri = str(tmp_path)
    DeltaTable.create(
        uri, pa.schema([("id", pa.int64())]), properties={"delta.columnMapping.mode": "name"}
    ).append(pa.table({"id": [1]}))
    log = tmp_path / "_delta_log"
    commit = log / f"{0:020}.json"
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        action.get("commitInfo", {}).pop("contentCrc32", None)
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": 1, "minWriterVersion": 2}
    commit.write_text("\n".join(map(json.dumps, actions)))
    for checksum in log.glob("*.crc"):
        checksum.unlink()
    with pytest.raises(InvalidTable, match="columnMapping"):
        DeltaTable(uri).snapshot().scan().to_arrow()
