"""AUTO CDC as the mode of assets: of rows, files, SQL and change feeds, by metadata and in YAML."""

import json
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from dagster_delta import (
    DeltaIOManager,
    DeltaTable,
    delta_change_feed_asset,
    delta_files_asset,
    delta_sql_asset,
)
from dagster_delta.errors import InvalidArgument
from tests.table.change_event_model import Event, event_rows, rows_of

COLUMNS = ("k", "v", "__START_AT", "__END_AT")
HISTORY: dict[str, Any] = {
    "merge_type": "auto_cdc",
    "keys": ["k"],
    "sequence_by": "seq",
    "stored_as_scd_type": 2,
    "apply_as_deletes": "op = 'D'",
    "except_column_list": ["op", "seq", "u"],
}


def event(seq: int, v: str | None, k: int = 1) -> Event:
    return {"k": k, "seq": seq, "op": "D" if v is None else "U", "v": v, "u": None}


def run(root: Path, *assets: dg.AssetsDefinition, **options: Any) -> dg.ExecuteInProcessResult:
    manager = DeltaIOManager(root_uri=str(root), schema="s")
    return dg.materialize(list(assets), resources={"io_manager": manager}, **options)


def test_asset_of_events_has_their_history(tmp_path: Path) -> None:
    batches = [[event(5, "b"), event(1, "a")], [event(3, "m")], [event(3, "m")]]

    @dg.asset(metadata={"mode": "merge", "merge_config": HISTORY})
    def customers() -> pa.Table:
        return event_rows(batches.pop(0))

    for _ in range(3):
        done = run(tmp_path, customers)
    table = DeltaTable(str(tmp_path / "s" / "customers"))
    assert rows_of(table, *COLUMNS) == [(1, "a", 1, 3), (1, "b", 5, None), (1, "m", 3, 5)]
    assert table.version() == 1
    assert "delta.setTransactionRetentionDuration" not in table.metadata().configuration
    (made,) = done.asset_materializations_for_node("customers")
    assert "change nothing" in str(made.metadata)


def test_partitioned_asset_needs_its_column_among_the_keys(tmp_path: Path) -> None:
    days = dg.StaticPartitionsDefinition(["1", "2"])

    def define(keys: list[str]) -> dg.AssetsDefinition:
        @dg.asset(
            name="t",
            partitions_def=days,
            metadata={
                "mode": "merge",
                "partition_expr": "k",
                "merge_config": {**HISTORY, "keys": keys},
            },
        )
        def t(context: dg.AssetExecutionContext) -> pa.Table:
            return event_rows([event(1, "a", k=int(context.partition_key))])

        return t

    for key in ("1", "2"):
        run(tmp_path, define(["k"]), partition_key=key)
    table = DeltaTable(str(tmp_path / "s" / "t"))
    assert rows_of(table, *COLUMNS) == [(1, "a", 1, None), (2, "a", 1, None)]
    with pytest.raises(InvalidArgument, match="among the keys"):
        run(tmp_path / "other", define(["v"]), partition_key="1")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"merge_type": "upsert"}, "keys is for the merge_type auto_cdc"),
        ({"predicate": "t.k = s.k"}, "instead of a predicate"),
        ({"keys": None}, "takes keys"),
        ({"stored_as_scd_type": 4}, "is 1 or 2"),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    @dg.asset(metadata={"mode": "merge", "merge_config": {**HISTORY, **change}})
    def customers() -> pa.Table:
        return event_rows([event(1, "a")])

    with pytest.raises(InvalidArgument, match=message):
        run(tmp_path, customers)


def test_files_of_events_have_their_history(tmp_path: Path) -> None:
    landing = tmp_path / "landing"
    landing.mkdir()

    def land(name: str, *events: Event) -> None:
        text = "".join(json.dumps(one) + "\n" for one in events)
        (landing / name).write_text(text)

    files = delta_files_asset(
        "customers",
        str(landing / "*.json"),
        mode="auto_cdc",
        columns={"k": "BIGINT", "seq": "BIGINT", "op": "STRING", "v": "STRING", "u": "INT"},
        metadata={"merge_config": HISTORY},
    )
    land("2.json", event(5, "b"))
    run(tmp_path, files)
    land("1.json", event(1, "a"), event(7, None))
    run(tmp_path, files)
    table = DeltaTable(str(tmp_path / "s" / "customers"))
    assert rows_of(table, *COLUMNS) == [(1, "a", 1, 5), (1, "b", 5, 7)]


def test_sql_asset_has_the_history_of_its_query(tmp_path: Path) -> None:
    @dg.asset(metadata={"mode": "append"})
    def events() -> pa.Table:
        return event_rows([event(5, "b"), event(1, "a")])

    history = delta_sql_asset(
        "history",
        "SELECT * FROM events",
        {"events": "events"},
        metadata={"mode": "merge", "merge_config": HISTORY},
    )
    run(tmp_path, events, history)
    table = DeltaTable(str(tmp_path / "s" / "history"))
    assert rows_of(table, *COLUMNS) == [(1, "a", 1, 5), (1, "b", 5, None)]


def test_change_feed_asset_keeps_the_history_of_its_upstream(tmp_path: Path) -> None:
    upstream = DeltaTable(str(tmp_path / "s" / "now"), must_exist=False)
    upstream.append(
        pa.table({"k": [1, 2], "v": ["a", "x"]}),
        properties={"delta.enableChangeDataFeed": "true"},
    )

    @delta_change_feed_asset(
        "now",
        keys=["k"],
        mode="auto_cdc",
        table=upstream.uri,
        metadata={"merge_config": {"stored_as_scd_type": 2}},
    )
    def history(changes: pa.Table) -> pa.Table:
        return changes

    run(tmp_path, history)
    upstream.update({"v": "'b'"}, "k = 1")
    upstream.delete("k = 2")
    upstream.update({"v": "'c'"}, "k = 1")
    run(tmp_path, history)
    run(tmp_path, history, run_config={"ops": {"history": {"config": {"full_refresh": True}}}})
    table = DeltaTable(str(tmp_path / "s" / "history"))
    expected = [(1, "a", 0, 1), (1, "b", 1, 3), (1, "c", 3, None), (2, "x", 0, 2)]
    assert rows_of(table, *COLUMNS) == expected


@pytest.mark.parametrize("kind", [pa.Table, pytest.param("spark", marks=pytest.mark.slow)])
def test_change_feed_asset_applies_the_events_of_a_log(
    tmp_path: Path, request: pytest.FixtureRequest, kind: Any
) -> None:
    if kind == "spark":
        request.getfixturevalue("spark")
        from pyspark.sql import DataFrame

        kind = DataFrame
    upstream = DeltaTable(str(tmp_path / "s" / "log"), must_exist=False)
    upstream.append(
        event_rows([event(5, "b"), event(1, "a"), event(3, "x", k=2)]),
        properties={"delta.enableChangeDataFeed": "true"},
    )

    def history(changes: Any) -> Any:
        return changes

    history.__annotations__["changes"] = kind
    asset = delta_change_feed_asset(
        "log",
        keys=["k"],
        mode="auto_cdc",
        table=upstream.uri,
        metadata={
            "merge_config": {
                "sequence_by": "seq",
                "stored_as_scd_type": 2,
                "apply_as_deletes": "op = 'D'",
                "except_column_list": ["op", "seq", "u"],
                "on_equal_sequence": "last",
            }
        },
    )(history)
    run(tmp_path, asset)
    upstream.append(event_rows([event(3, "m"), event(9, None, k=2), event(4, "m")]))
    run(tmp_path, asset)
    table = DeltaTable(str(tmp_path / "s" / "history"))
    expected = [(1, "a", 1, 3), (1, "b", 5, None), (1, "m", 3, 5), (2, "x", 3, 9)]
    assert rows_of(table, *COLUMNS) == expected
    assert table.schema().names == COLUMNS
    upstream.update({"v": "'c'"}, "seq = 5")
    run(tmp_path, asset)
    expected[1] = (1, "c", 5, None)
    run(tmp_path, asset, run_config={"ops": {"history": {"config": {"full_refresh": True}}}})
    table.refresh()
    assert rows_of(table, *COLUMNS) == sorted(expected, key=repr)


def test_upsert_leaves_equal_rows_as_they_are(tmp_path: Path) -> None:
    config = {"merge_type": "upsert", "predicate": "t.k = s.k"}
    values = [["a", "b"], ["a", "c"], ["a", "c"]]

    @dg.asset(metadata={"mode": "merge", "merge_config": config})
    def latest() -> pa.Table:
        return pa.table({"k": [1, 2], "v": values.pop(0)})

    run(tmp_path, latest)
    table = DeltaTable(str(tmp_path / "s" / "latest"))
    assert table.version() == 0
    for _ in range(2):
        run(tmp_path, latest)
    table.refresh()
    updated = [entry.operation_metrics.get("numTargetRowsUpdated") for entry in table.history()]
    assert [str(count) for count in updated] == ["0", "1", "0"]
