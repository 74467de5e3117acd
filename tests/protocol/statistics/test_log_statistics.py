"""Statistics of files in a checkpoint. Spec: Checkpoint Format; Per-file Statistics."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_delta.protocol.checkpoint.batches import read_adds, read_statistics
from dagster_delta.protocol.checkpoint.reader import CheckpointPart
from dagster_delta.protocol.schema import PrimitiveType
from dagster_delta.protocol.statistics.statistics import StatisticsColumn

ID = StatisticsColumn(("id",), PrimitiveType("long"))


def _part(**fields: Any) -> CheckpointPart:
    add = pa.StructArray.from_arrays(list(fields.values()), names=list(fields))
    sink = io.BytesIO()
    pq.write_table(pa.table({"add": add}), sink)
    return CheckpointPart(lambda: pa.BufferReader(sink.getvalue()), "p")


def _parsed(*rows: dict[str, Any] | None, count: str = "nullCount") -> Any:
    bounds = pa.struct([("id", pa.int64()), ("other", pa.string())])
    counts = pa.struct([("id", pa.int64())])
    return pa.array(
        rows,
        pa.struct(
            [
                ("numRecords", pa.int64()),
                ("minValues", bounds),
                ("maxValues", bounds),
                (count, counts),
            ]
        ),
    )


def _row(number: int) -> dict[str, Any]:
    return {
        "numRecords": number,
        "minValues": {"id": number, "other": "a"},
        "maxValues": {"id": number + 5, "other": "b"},
        "nullCount": {"id": 1},
    }


def _all(part: CheckpointPart) -> Any:
    return part.add_rows()[0]


def test_parsed_statistics_are_taken_where_they_are() -> None:
    part = _part(path=pa.array(["a", "b"]), stats_parsed=_parsed(_row(3), _row(4)))
    assert read_statistics(part, [ID], _all(part)).to_pylist() == [
        {"num_records": 3, "tight_bounds": None, "min.0": 3, "max.0": 8, "null_count.0": 1},
        {"num_records": 4, "tight_bounds": None, "min.0": 4, "max.0": 9, "null_count.0": 1},
    ]


def test_json_fills_in_for_files_without_parsed_statistics() -> None:
    texts = pa.array([json.dumps(_row(7)), json.dumps(_row(8)), None])
    part = _part(
        path=pa.array(["a", "b", "c"]), stats=texts, stats_parsed=_parsed(_row(3), None, None)
    )
    found = read_statistics(part, [ID], _all(part))
    assert found["num_records"].to_pylist() == [3, 8, None]
    assert found["max.0"].to_pylist() == [8, 13, None]


def test_json_is_parsed_where_there_is_nothing_else() -> None:
    part = _part(path=pa.array(["a", "b"]), stats=pa.array([json.dumps(_row(7)), None]))
    assert read_statistics(part, [ID], _all(part))["min.0"].to_pylist() == [7, None]
    bare = _part(path=pa.array(["a"]))
    assert read_statistics(bare, [ID], _all(bare))["num_records"].to_pylist() == [None]


def test_only_the_chosen_files_are_answered_for() -> None:
    part = _part(path=pa.array(["a", "b"]), stats_parsed=_parsed(_row(3), _row(4)))
    keep = pa.array([False, True])
    assert read_statistics(part, [], keep)["num_records"].to_pylist() == [4]
    assert len(read_adds(part, ["stats"], keep)["stats"]) == 1


def test_json_stands_as_it_was_written() -> None:
    part = _part(
        path=pa.array(["a", "b"]),
        stats=pa.array(['{"numRecords": 1}', None]),
        stats_parsed=_parsed(_row(9), _row(4)),
    )
    first, second = read_adds(part, ["stats"], _all(part))["stats"].to_pylist()
    assert first == '{"numRecords": 1}'
    assert json.loads(second) == _row(4)


def test_the_null_counts_of_the_draft_get_their_shipped_name() -> None:
    row = {"numRecords": 1, "nullCounts": {"id": 2}}
    part = _part(path=pa.array(["a"]), stats_parsed=_parsed(row, count="nullCounts"))
    (text,) = read_adds(part, ["stats"], _all(part))["stats"].to_pylist()
    assert json.loads(text)["nullCount"] == {"id": 2}
    assert read_statistics(part, [ID], _all(part))["null_count.0"].to_pylist() == [2]


def test_values_are_spelled_as_writers_spell_them() -> None:
    values = {
        "d": (Decimal("1.50"), pa.decimal128(5, 2)),
        "t": (dt.datetime(2024, 5, 1, 12, 0, 0, 123456, tzinfo=dt.UTC), pa.timestamp("us", "UTC")),
        "n": (dt.datetime(2024, 5, 1, 12), pa.timestamp("us")),
        "day": (dt.date(2024, 5, 1), pa.date32()),
        "f": (float("nan"), pa.float64()),
        "b": (b"x", pa.binary()),
        "ok": (True, pa.bool_()),
        "null": (None, pa.string()),
    }
    bounds = pa.struct([(name, data_type) for name, (_, data_type) in values.items()])
    row = {"numRecords": 1, "minValues": {name: value for name, (value, _) in values.items()}}
    parsed = pa.array([row, None], pa.struct([("numRecords", pa.int64()), ("minValues", bounds)]))
    part = _part(path=pa.array(["a", "b"]), stats_parsed=parsed)
    text, absent = read_adds(part, ["stats"], _all(part))["stats"].to_pylist()
    assert absent is None
    assert text == (
        '{"numRecords":1,"minValues":{"d":1.50,"t":"2024-05-01T12:00:00.123456Z",'
        '"n":"2024-05-01T12:00:00.000000","day":"2024-05-01","ok":true}}'
    )


def test_bounds_that_python_has_no_date_for_are_left_out() -> None:
    bounds = pa.struct([("id", pa.int64()), ("day", pa.date32()), ("at", pa.timestamp("us"))])
    day, far = pa.array([0, 4_000_000, None], pa.date32()), 2**62
    at = pa.array([0, far, None], pa.timestamp("us"))
    values = pa.StructArray.from_arrays([pa.array([1, 2, 3]), day, at], fields=list(bounds))
    parsed = pa.StructArray.from_arrays([pa.array([1, 1, 1]), values], ["numRecords", "maxValues"])
    part = _part(path=pa.array(["a", "b", "c"]), stats_parsed=parsed)
    texts = read_adds(part, ["stats"], _all(part))["stats"].to_pylist()
    assert [json.loads(text)["maxValues"] for text in texts] == [
        {"id": 1, "day": "1970-01-01", "at": "1970-01-01T00:00:00.000000"},
        {"id": 2},
        {"id": 3},
    ]


def test_bounds_of_variants_are_passed_over() -> None:
    variant = pa.struct([("metadata", pa.binary()), ("value", pa.binary())])
    bounds = pa.struct([("id", pa.int64()), ("v", variant)])
    encoded = {"id": 3, "v": {"metadata": b"\1\0\0", "value": b"\0"}}
    row = {"numRecords": 1, "minValues": encoded, "maxValues": encoded}
    parsed = pa.struct([("numRecords", pa.int64()), ("minValues", bounds), ("maxValues", bounds)])
    part = _part(path=pa.array(["a"]), stats_parsed=pa.array([row], parsed))
    (text,) = read_adds(part, ["stats"], _all(part))["stats"].to_pylist()
    assert json.loads(text) == {"numRecords": 1, "minValues": {"id": 3}, "maxValues": {"id": 3}}
    columns = [ID, StatisticsColumn(("v",), PrimitiveType("variant"))]
    texts = pa.array([json.dumps({**row, "minValues": {"id": 3, "v": "0S&u"}, "maxValues": {}})])
    for found in (part, _part(path=pa.array(["a"]), stats=texts)):
        (statistics,) = read_statistics(found, columns, _all(found)).to_pylist()
        assert (statistics["min.0"], statistics["min.1"], statistics["max.1"]) == (3, None, None)
