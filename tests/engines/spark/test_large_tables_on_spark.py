"""Reads and changes of a large table, whose log is read in batches, on Spark."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from dagster_delta import DeltaTable
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA
from dagster_delta.table.log import version as version_module
from dagster_delta.table.log_upkeep.checkpoint_files import write_checkpoint
from dagster_delta.table.read.file_planner import FilePlanner
from tests.golden.answers import NAMES, answer, rows_of, table_path
from tests.inline_vectors import encode_inline
from tests.table.logs import ADD_TYPE, CHECKPOINT_TYPES, checkpoint_bytes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

CHECKPOINTED = [
    name
    for name in NAMES
    if answer(name)["expected_error"] is None
    and any(Path(table_path(name), "_delta_log").glob("*.checkpoint*"))
]


@pytest.fixture
def in_batches(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkSession]:
    """The shared session, far away from UTC; every log with a checkpoint is read in batches."""
    monkeypatch.setattr(version_module, "LARGE_TABLE_FILES", 0)
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", zone)


def listed(files: pa.Table) -> list[str]:
    return sorted(json.dumps(row, default=str, sort_keys=True) for row in files.to_pylist())


# -- golden tables ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CHECKPOINTED)
@pytest.mark.usefixtures("golden_tables")
def test_batches_of_a_golden_log_have_its_files(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = listed(DeltaTable(table_path(name)).snapshot().live_files())
    monkeypatch.setattr(version_module, "LARGE_TABLE_FILES", 0)
    batches = FilePlanner(DeltaTable(table_path(name)).snapshot()).batches(LIVE_FILE_SCHEMA.names)
    assert listed(pa.concat_tables([batch.files for batch in batches])) == whole


# -- predicates ---------------------------------------------------------------------------------

FIELDS = [
    ("p", "string"),
    ("q", "date"),
    ("i", "integer"),
    ("l", "long"),
    ("f", "float"),
    ("x", "double"),
    ("m", "decimal(9,2)"),
    ("w", "decimal(30,2)"),
    ("s", "string"),
    ("d", "date"),
    ("t", "timestamp"),
    ("n", "timestamp_ntz"),
    ("b", "boolean"),
]
UTC = dt.UTC


def moment(number: int) -> dt.datetime:
    return dt.datetime(2024, 3, 10, 1) + dt.timedelta(minutes=37 * number, microseconds=1234)


VALUES: dict[str, Callable[[int], Any]] = {
    "p": lambda n: "abcd"[n % 4],
    "q": lambda n: dt.date(2024, 2, 27) + dt.timedelta(n % 5),
    "i": lambda n: n - 50,
    "l": lambda n: (n - 50) * 10**15,
    "f": lambda n: (n - 50) / 10,
    "x": lambda n: (n - 50) * 1.1e7,
    "m": lambda n: Decimal(n - 50) / 4,
    "w": lambda n: (n - 50) * Decimal("92692743620450.61"),
    "s": lambda n: chr(97 + n % 26) * (1 + n % 40),
    "d": lambda n: dt.date(2024, 1, 1) + dt.timedelta(n),
    "t": moment,
    "n": moment,
    "b": lambda n: n % 2 == 0,
}


def spelled(name: str, value: Any) -> Any:
    """A bound as writers spell it in JSON: cut down where they cut."""
    match value:
        case dt.datetime():
            return value.isoformat(timespec="milliseconds") + ("Z" if name == "t" else "")
        case dt.date():
            return value.isoformat()
        case Decimal():
            return float(value)
        case str():
            return value[:32]
    return value


def statistics(random_: random.Random) -> str | None:
    if random_.random() < 0.1:
        return random_.choice([None, "", '{"numRecords":3,"maxValues":{"i":1', "[]"])
    stats: dict[str, Any] = {"numRecords": 10, "minValues": {}, "maxValues": {}, "nullCount": {}}
    for name, _ in FIELDS[2:]:
        low = random_.randrange(100)
        high = min(99, low + random_.choice([0, 0, 1, 5, 30]))
        nulls = random_.choice([0, 0, 3, 10, None])
        if nulls is not None:
            stats["nullCount"][name] = nulls
        if nulls != 10 and random_.random() < 0.9:
            ends = sorted([VALUES[name](low), VALUES[name](high)])
            stats["minValues"][name] = spelled(name, ends[0])
            stats["maxValues"][name] = spelled(name, ends[1])
    return json.dumps(stats)


def add(number: int, random_: random.Random, **fields: Any) -> dict[str, Any]:
    p = random_.choice([*"abcd", None, ""])
    q = random_.choice([None, VALUES["q"](random_.randrange(5)).isoformat()])
    return {
        "add": {
            "path": f"p={p}/part-{number:05}.parquet",
            "partitionValues": {"p": p, "q": q},
            "size": 1000 + number,
            "modificationTime": number,
            "dataChange": True,
            "stats": statistics(random_),
            **fields,
        }
    }


def vector(number: int) -> dict[str, Any]:
    return {
        "storageType": "u",
        "pathOrInlineDv": f"ab^-aqEH.-t@S}}K{{vb[*k^{number % 7}",
        "offset": 4,
        "sizeInBytes": 40,
        "cardinality": 6,
    }


def of_key(action: dict[str, Any]) -> dict[str, Any]:
    named = {name: action["add"].get(name) for name in ("path", "deletionVector")}
    return {"remove": {**{k: v for k, v in named.items() if v}, "dataChange": True}}


def put(table: DeltaTable, version: int, actions: Sequence[dict[str, Any]]) -> None:
    lines = "\n".join(json.dumps(each) for each in ({"commitInfo": {}}, *actions))
    table.store.put_if_absent(commit_path(version), lines.encode())


def sidecars_of(table: DeltaTable, adds: Sequence[dict[str, Any]], *, manifest: str) -> None:
    """A V2 checkpoint of version 1 whose files stand in two sidecars, one of them with fewer
    columns."""
    snapshot = table.snapshot(version=1)
    short = pa.struct([each for each in ADD_TYPE if each.name not in ("tags", "baseRowId")])
    named = []
    for number, (chosen, kind) in enumerate([(adds[::2], ADD_TYPE), (adds[1::2], short)]):
        data = checkpoint_bytes(chosen, {"add": kind})
        table.store.put(f"_delta_log/_sidecars/{number}.parquet", data)
        named.append({"sidecar": {"path": f"{number}.parquet", "sizeInBytes": len(data), "modificationTime": 1}})  # fmt: skip
    first = [json.loads(line) for line in table.store.read(commit_path(0)).splitlines()]
    rest = [each for each in first if "protocol" in each or "metaData" in each]
    assert snapshot.version == 1
    path = f"_delta_log/{1:020}.checkpoint.00000000-0000-4000-8000-000000000000.{manifest}"
    if manifest == "json":
        lines = [{"checkpointMetadata": {"version": 1}}, *rest, *named]
        table.store.put(path, "\n".join(map(json.dumps, lines)).encode())
    else:
        kinds = {k: v for k, v in CHECKPOINT_TYPES.items() if k in ("metaData", "protocol", "sidecar")}  # fmt: skip
        table.store.put(path, checkpoint_bytes([*rest, *named], kinds))


LAYOUTS = ["json", "parsed", "both", "parts", "sidecars", "sidecars_by_json"]


def logged_table(path: Path, layout: str, number: int = 300) -> DeltaTable:
    """A table without data files: a checkpoint at version 1, then removes and adds."""
    random_ = random.Random(17)
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in FIELDS
    ]
    properties = {
        "delta.checkpoint.writeStatsAsStruct": "false" if layout == "json" else "true",
        "delta.checkpoint.writeStatsAsJson": "false" if layout == "parsed" else "true",
        "delta.enableDeletionVectors": "true",
    }
    if layout.startswith("sidecars"):
        properties["delta.checkpointPolicy"] = "v2"
    from dagster_delta.protocol.schema import StructType

    schema = StructType.from_json(json.dumps({"type": "struct", "fields": fields}))
    table = DeltaTable.create(str(path), schema, partition_by=["p", "q"], properties=properties)
    adds = [
        add(at, random_, **({"deletionVector": vector(at)} if at % 5 == 0 else {}))
        for at in range(number)
    ]
    put(table, 1, adds)
    if layout.startswith("sidecars"):
        sidecars_of(table, adds, manifest="json" if layout.endswith("json") else "parquet")
    else:
        snapshot = table.snapshot(version=1)
        per_part = number // 3 if layout == "parts" else 10**6
        write_checkpoint(snapshot, now_ms=0, max_actions_per_file=per_part)
    again = {"add": {**adds[7]["add"], "modificationTime": 99}}
    with_vector = {"add": {**adds[8]["add"], "deletionVector": vector(3)}}
    other_vector = {"add": {**adds[10]["add"], "deletionVector": vector(11)}}
    put(table, 2, [of_key(adds[3]), of_key(adds[5]), again, of_key(adds[8]), with_vector])
    put(table, 3, [of_key(adds[10]), other_vector, add(number, random_), add(number + 1, random_)])
    put(table, 4, [of_key(add(number, random.Random(1))), of_key(again)])
    return DeltaTable(str(path))


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DeltaTable]:
    root = tmp_path_factory.mktemp("layouts")
    return {layout: logged_table(root / layout, layout) for layout in LAYOUTS}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_files_of_the_whole_list(
    layout: str, layouts: dict[str, DeltaTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = layouts[layout].uri
    for where in (None, "q = DATE '2024-02-28' AND l > 0"):
        whole = listed(DeltaTable(uri).snapshot().scan(where=where).plan().files)
        with monkeypatch.context() as patched:
            patched.setattr(version_module, "LARGE_TABLE_FILES", 0)
            assert DeltaTable(uri).snapshot().is_large_and_unread
            found = DeltaTable(uri).snapshot().scan(where=where).plan().files
        assert listed(found) == whole, where


# -- rows ---------------------------------------------------------------------------------------


def rows_between(first: int, last: int) -> pa.Table:
    return pa.table(
        {
            "id": range(first, last),
            "p": ["xyz"[at % 3] if at % 7 else None for at in range(first, last)],
            "o": [{"z": at} for at in range(first, last)],
        }
    )


@pytest.fixture
def living(tmp_path: Path) -> DeltaTable:
    """Partitions, deletion vectors before and after the checkpoint, and files removed again."""
    table = DeltaTable(str(tmp_path / "a table"), must_exist=False)
    properties = {
        "delta.enableDeletionVectors": "true",
        "delta.checkpointInterval": "1000",
        "delta.columnMapping.mode": "name",
    }
    table.append(rows_between(0, 60), partition_by=["p"], properties=properties)
    table.append(rows_between(60, 120))
    table.delete("id % 10 = 3")
    table.checkpoint()
    table.delete("id IN (5, 64) OR p = 'z' AND id >= 60")
    table.append(rows_between(120, 150))
    table.delete("id = 149")
    return DeltaTable(table.uri)


WHERES = [None, "o.z BETWEEN 61 AND 64", "p IS NULL OR id > 140", "id < 0"]


def test_rows_are_those_of_the_embedded_engine(
    living: DeltaTable, in_batches: SparkSession
) -> None:
    for where in WHERES:
        found = rows_of(living.snapshot().scan(where=where).to_spark(in_batches).toArrow())
        assert found == rows_of(living.snapshot().scan(where=where).to_arrow()), where


def test_a_projection_has_the_rows_of_the_embedded_engine(
    living: DeltaTable, in_batches: SparkSession
) -> None:
    scan = living.snapshot().scan(columns=["p"], where="id > 100")
    assert rows_of(scan.to_spark(in_batches).toArrow()) == rows_of(scan.to_arrow())
    assert living.snapshot().scan().to_spark(in_batches).count() == living.snapshot().scan().count()


def test_a_change_on_spark_is_seen_by_the_next_read(
    living: DeltaTable, in_batches: SparkSession
) -> None:
    frame = in_batches.createDataFrame(rows_between(150, 160))
    living.append(frame, idempotency=("job", 1))
    assert living.append(frame, idempotency=("job", 1)).skipped
    living.update({"id": "id + 1000"}, "id = 70", engine="spark")
    result = living.delete("id = 61", engine="spark")
    assert result.metrics["numDeletedRows"] == 1
    source = in_batches.createDataFrame(rows_between(66, 67))
    merged = living.merge(source, "t.id = s.id").when_matched_update({"id": "2066"}).execute()
    assert merged.metrics["numTargetRowsUpdated"] == 1
    left = (
        DeltaTable(living.uri)
        .snapshot()
        .scan(where="id IN (61, 66, 70, 155, 1070, 2066)")
        .to_spark(in_batches)
    )
    assert sorted(row["id"] for row in left.collect()) == [155, 1070, 2066]


def test_row_ids_are_those_of_the_embedded_engine(tmp_path: Path, in_batches: SparkSession) -> None:
    table = DeltaTable(str(tmp_path / "t"), must_exist=False)
    table.append(rows_between(0, 20), properties={"delta.enableRowTracking": "true"})
    table.append(rows_between(20, 40))
    table.checkpoint()
    wanted = rows_of(DeltaTable(table.uri).snapshot().scan(row_ids=True).to_arrow())
    scan = DeltaTable(table.uri).snapshot().scan(row_ids=True)
    assert rows_of(scan.to_spark(in_batches).toArrow()) == wanted


def test_statistics_of_another_type_than_the_column_has_now_drop_no_file(
    tmp_path: Path, in_batches: SparkSession
) -> None:
    table = DeltaTable(str(tmp_path / "t"), must_exist=False)
    struct = {"delta.checkpoint.writeStatsAsStruct": "true"}
    table.append(pa.table({"c": [dt.date(2024, 1, 1)], "d": [1]}), properties=struct)
    table.append(pa.table({"c": [dt.date(2024, 1, 2)], "d": [2]}))
    table.checkpoint()
    table.overwrite(pa.table({"c": [7, 8], "d": ["x", "y"]}), schema_mode="overwrite")
    for where in ("c > 7", "d = 'x'", "c IS NULL"):
        scan = DeltaTable(table.uri).snapshot().scan(where=where)
        assert rows_of(scan.to_spark(in_batches).toArrow()) == rows_of(scan.to_arrow())


def test_inline_vectors_reach_the_executors(tmp_path: Path, in_batches: SparkSession) -> None:
    table = DeltaTable(str(tmp_path / "t"), must_exist=False)
    table.append(pa.table({"id": range(100)}), properties={"delta.enableDeletionVectors": "true"})
    [live] = table.snapshot().live_files(["path", "size_bytes", "stats"]).to_pylist()
    inline = encode_inline(BitMap64(range(90)))
    action = {
        "path": live["path"],
        "partitionValues": {},
        "size": live["size_bytes"],
        "modificationTime": 1,
        "dataChange": True,
        "stats": live["stats"],
        "deletionVector": {
            "storageType": "i",
            "pathOrInlineDv": inline.path_or_inline_dv,
            "sizeInBytes": inline.size_in_bytes,
            "cardinality": inline.cardinality,
        },
    }
    put(table, 1, [{"remove": {"path": live["path"], "dataChange": True}}, {"add": action}])
    table.refresh()
    table.checkpoint()
    frame = DeltaTable(table.uri).snapshot().scan().to_spark(in_batches)
    assert sorted(row["id"] for row in frame.collect()) == list(range(90, 100))
