"""What files of a landing zone bring beside good rows: columns, rows and files that do not fit."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import dagster as dg
import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from dagster_delta import DeltaTable, delta_files_asset, delta_table_sensor
from dagster_delta.errors import ConcurrentTransaction, DeltaError, InvalidArgument, SchemaMismatch
from dagster_delta.orchestration.incremental import file_assets
from dagster_delta.orchestration.incremental.file_assets import FileLoad, FilesConfig
from dagster_delta.orchestration.io.asset_writer import write_asset
from dagster_delta.orchestration.quarantine import QUARANTINE_PROPERTY, Load, Quarantine
from dagster_delta.orchestration.quarantine import QuarantinedRow as Row
from dagster_delta.table.transaction.transaction import Transaction
from tests.orchestration.conftest import QUIET, Lake, plain
from tests.table_rows import stored_rows

COLUMNS = {"id": "BIGINT", "amount": "DECIMAL(8, 2)", "day": "DATE"}
BAD = {
    "csv": "id,amount,day\n1,1.50,2024-01-01\nx,2,\n3,1.234,\n4,4\n5,5,2024-13-01\n6,6,2024-01-06\n",
    "json": (
        '{"id": 1, "amount": "1.50", "day": "2024-01-01"}\n{"id": "x", "amount": 2}\n'
        '{"id": 3, "amount": 1.234}\n{"id": 4\n\n{"id": 5, "day": "2024-13-01"}\nnull\n'
        '{"id": 6, "amount": 6, "day": "2024-01-06"}\n'
    ),
}


def orders(landing: Path, pattern: str = "*", **options: Any) -> dg.AssetsDefinition:
    return delta_files_asset("orders", f"{landing}/{pattern}", **options)


def run(lake: Lake, asset: dg.AssetsDefinition, **config: Any) -> dict[str, Any]:
    result = launch(lake, asset, **config)
    assert result.success
    return lake.metadata(result, "orders")


def launch(
    lake: Lake, asset: dg.AssetsDefinition, tags: dict[str, str] | None = None, **config: Any
) -> dg.ExecuteInProcessResult:
    return dg.materialize(
        [asset],
        instance=lake.instance,
        resources={"io_manager": lake.manager()},
        run_config={**QUIET, "ops": {"orders": {"config": config}}} if config else QUIET,
        tags=tags,
        raise_on_error=False,
    )


def error_of(lake: Lake, asset: dg.AssetsDefinition, **config: Any) -> BaseException:
    return lake.fail(asset, **config)


def quarantined(lake: Lake) -> list[dict[str, Any]]:
    """As another implementation reads them."""
    table = deltalake.DeltaTable(str(lake.root / "public" / "orders_quarantine"))
    assert table.metadata().configuration[QUARANTINE_PROPERTY] == "orders"
    found: list[dict[str, Any]] = table.to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: (row["file"] or "", row["row_number"]))


def ids(lake: Lake) -> list[Any]:
    return lake.column("id", "orders")


# ---- columns


@pytest.mark.parametrize("columns", [{"id": "BIGINT", "amount": "INT"}, None])
def test_a_new_column_fails_the_run_with_the_ways_out(lake, landing, put, columns) -> None:
    asset = orders(landing, columns=columns)
    put("1.csv", "id,amount\n1,10\n")
    run(lake, asset)
    put("2.csv", "id,amount,channel\n2,20,web\n", at=2000)
    error = lake.fail(asset)
    assert isinstance(error, SchemaMismatch)
    for part in ("2.csv has a column channel", "`columns`", "'evolve'", "'ignore'"):
        assert part in str(error)
    assert ids(lake) == [1]


def test_a_renamed_column_fails_the_run(lake, landing, put) -> None:
    asset = orders(landing, columns={"id": "BIGINT", "amount": "INT"})
    put("3.csv", "id,total\n3,30\n")
    assert "3.csv has a column total" in str(lake.fail(asset))


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_ignored_and_null_columns_stand_in_the_metadata(lake, landing, put, kind) -> None:
    content = {"csv": "id,total\n3,30\n", "json": '{"id": 3, "total": 30}\n'}
    path = put(f"a.{kind}", content.get(kind, ""))
    if kind == "parquet":
        pq.write_table(pa.table({"id": [3], "total": [30]}), path)
    asset = orders(landing, columns={"id": "BIGINT", "amount": "INT"}, new_columns="ignore")
    metadata = run(lake, asset)
    assert metadata["delta/ignored_columns"] == ["total"]
    assert metadata["delta/null_columns"] == ["amount"]
    (file,) = metadata["delta/details"]["files_with_null_columns"]["amount"]
    assert file.endswith(f"a.{kind}")
    assert lake.rows("orders") == [{"id": 3, "amount": None}]


def test_a_key_that_appears_late_in_json_is_no_silent_loss(lake, landing, put) -> None:
    line = '{"id": 1, "text": "' + "x" * 1000 + '"}\n'
    put("a.json", line * 8500 + '{"id": 2, "late": 3}\n')
    columns = {"id": "BIGINT", "text": "STRING"}
    assert "has a column late" in str(lake.fail(orders(landing, columns=columns)))
    metadata = run(lake, orders(landing, columns=columns, new_columns="ignore"))
    assert metadata["delta/ignored_columns"] == ["late"]


def test_new_columns_evolve_the_table_with_the_given_types_of_the_others(
    lake, landing, put
) -> None:
    columns = {"id": "BIGINT", "amount": "DECIMAL(8, 2)"}
    asset = orders(landing, columns=columns, new_columns="evolve")
    put("a.csv", "id,amount\n1,1.5\n")
    run(lake, asset)
    put("b.csv", "id,amount,channel\n2,2,web\n", at=2000)
    put("c.json", '{"id": 3, "channel": "shop", "where": {"x": 1}}\n', at=2000)
    run(lake, asset)
    assert lake.rows("orders") == [
        {"id": 1, "amount": Decimal("1.50"), "channel": None, "where": None},
        {"id": 2, "amount": Decimal("2.00"), "channel": "web", "where": None},
        {"id": 3, "amount": None, "channel": "shop", "where": {"x": 1}},
    ]


@pytest.mark.parametrize("kind", ["json", "parquet"])
@pytest.mark.parametrize("policy", ["fail", "ignore", "evolve"])
def test_a_new_field_inside_of_a_column_is_treated_as_a_new_column(
    lake, landing, put, kind, policy
) -> None:
    path = put(f"a.{kind}", '{"id": 1, "s": {"a": 1, "b": 2}}\n')
    if kind == "parquet":
        pq.write_table(pa.table({"id": [1], "s": [{"a": 1, "b": 2}]}), path)
    columns = {"id": "BIGINT", "s": "STRUCT<a: BIGINT>"}
    asset = orders(landing, columns=columns, new_columns=policy)
    if policy == "fail":
        assert "has a column s.b" in str(lake.fail(asset))
        return
    metadata = run(lake, asset)
    inner = {"a": 1} if policy == "ignore" else {"a": 1, "b": 2}
    assert lake.rows("orders") == [{"id": 1, "s": inner}]
    assert metadata.get("delta/ignored_columns") == (["s.b"] if policy == "ignore" else None)


def test_ignored_columns_of_a_table_are_those_that_it_lacks(lake, landing, put) -> None:
    put("a.csv", "id\n1\n")
    asset = orders(landing, new_columns="ignore")
    run(lake, asset)
    put("b.csv", "id,note\n2,x\n", at=2000)
    assert run(lake, asset)["delta/ignored_columns"] == ["note"]
    assert lake.rows("orders") == [{"id": 1}, {"id": 2}]


def test_evolving_columns_contradict_a_strict_schema(landing) -> None:
    with pytest.raises(InvalidArgument, match="schema_mode 'strict' refuses new"):
        orders(landing, new_columns="evolve", metadata={"schema_mode": "strict"})


@pytest.mark.parametrize(
    "options", [{"new_columns": "add"}, {"on_bad_rows": "drop"}, {"on_bad_files": "quarantine"}]
)
def test_unknown_policies_are_refused(landing, options) -> None:
    with pytest.raises(InvalidArgument, match="of orders is one of"):
        orders(landing, **options)


# ---- bad rows


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_bad_rows_are_quarantined_and_the_others_loaded(lake, landing, put, kind) -> None:
    put(f"a.{kind}", BAD[kind])
    put(f"b.{kind}", {"csv": "id,amount,day\n7,,\n", "json": '{"id": 7}\n'}[kind], at=2000)
    asset = orders(landing, columns=COLUMNS, on_bad_rows="quarantine")
    metadata = run(lake, asset)
    assert ids(lake) == [1, 6, 7]
    found = quarantined(lake)
    assert metadata["delta/quarantined_rows"] == len(found)
    assert {row["file"].rpartition("/")[2] for row in found} == {f"a.{kind}"}
    expected = {
        "csv": [3, 4, 5, 6],
        "json": [2, 3, 4, 6, 7],
    }
    assert [row["row_number"] for row in found] == expected[kind]
    assert "id" in found[0]["reasons"][0]
    assert found[1]["reasons"][0].startswith("column amount: ")
    assert found[1]["row"] == {"csv": "3,1.234,", "json": '{"id": 3, "amount": 1.234}'}[kind]
    by_day = found[3]["reasons"][0]
    assert by_day.startswith("column day: ")
    assert "2024-13-01" in by_day
    assert {row["run_id"] for row in found} == {lake.instance.get_runs()[0].run_id}
    assert "delta/quarantined_rows" not in run(lake, asset)
    assert quarantined(lake) == found


def test_bad_rows_of_parquet_are_quarantined(lake, landing, put) -> None:
    rows = pa.table({"id": ["1", "x", "3"], "amount": [1.5, 2.0, 1e9], "extra": [1, 2, 3]})
    pq.write_table(rows, put("a.parquet", ""))
    columns = {"id": "BIGINT", "amount": "DECIMAL(8, 2)"}
    asset = orders(landing, columns=columns, on_bad_rows="quarantine", new_columns="ignore")
    run(lake, asset)
    assert ids(lake) == [1]
    found = [(row["row_number"], row["row"], row["reasons"][0][:14]) for row in quarantined(lake)]
    assert found == [
        (2, '{"id": "x", "amount": 2.0, "extra": 2}', "column id: Fai"),
        (3, '{"id": "3", "amount": 1000000000.0, "extra": 3}', "column amount:"),
    ]


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_rows_are_bad_by_the_types_of_the_table_too(lake, landing, put, kind) -> None:
    put("a.csv", "id,v\n1,x\n")
    asset = orders(landing, on_bad_rows="quarantine")
    run(lake, asset)
    text = {"csv": "id,v\n2,y\nz,y\n4\n", "json": '{"id": 2, "v": "y"}\n{"id": "z"}\n{"id": \n'}
    put(f"b.{kind}", text[kind], at=2000)
    assert run(lake, asset)["delta/quarantined_rows"] == 2
    assert ids(lake) == [1, 2]


def test_types_are_inferred_from_the_rows_that_are_not_malformed(lake, landing, put) -> None:
    put("a.json", '{"id": 1, "v": "a"}\n{"id":\nnull\n{"id": 3}\n')
    put("b.csv", "id,v\n4,b,c\n5,d\n")
    assert run(lake, orders(landing, on_bad_rows="quarantine"))["delta/quarantined_rows"] == 3
    assert ids(lake) == [1, 3, 5]


def test_numbers_of_rows_count_blank_lines_of_json_and_values_with_line_ends_of_csv_once(
    lake, landing, put
) -> None:
    put("a.csv", 'id,v\n1,"two\nlines"\n\nx,1\n3\n4,"a, b"\ny,"q""uote"\n')
    put("b.json", '\n\n{"id": 5}\n\n{"id": "z"}')
    run(lake, orders(landing, columns={"id": "INT", "v": "STRING"}, on_bad_rows="quarantine"))
    found = [(row["row_number"], row["row"]) for row in quarantined(lake)]
    assert found == [(3, "x,1"), (4, "3"), (6, 'y,"q""uote"'), (5, '{"id": "z"}')]
    assert ids(lake) == [1, 4, 5]


def test_many_bad_rows_across_blocks_are_told_from_the_good_ones(
    lake, landing, put, monkeypatch
) -> None:
    monkeypatch.setattr("dagster_delta.orchestration.incremental.file_rows._BLOCK_BYTES", 4096)
    lines = [f"{n if n % 7 else 'bad'},{n}{',1' if n % 11 == 0 else ''}" for n in range(5000)]
    put("a.csv", "\n".join(["id,v", *lines, ""]))
    texts = ['{"id": ' + (str(n) if n % 7 else '"bad"') + "}" for n in range(5000, 9000)]
    put("b.json", "\n".join(texts))
    columns = {"id": "BIGINT", "v": "BIGINT"}
    run(lake, orders(landing, columns=columns, on_bad_rows="quarantine"))
    good = [n for n in range(5000) if n % 7 and n % 11]
    assert ids(lake) == [*good, *(n for n in range(5000, 9000) if n % 7)]
    found = {(Path(row["file"]).suffix, row["row_number"]) for row in quarantined(lake)}
    of_csv = {(".csv", n + 2) for n in range(5000) if not (n % 7 and n % 11)}
    assert found == of_csv | {(".json", n - 4999) for n in range(5000, 9000) if not n % 7}
    assert len(quarantined(lake)) == len(found)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", BAD["csv"], r"a\.csv .*row 5: it has 2 values, and the header 3"),
        ("a.csv", "id,amount,day\n1,1,\n2,zz,\n", r"a\.csv .*row 3: column amount: .*'zz'"),
        ("a.json", '{"id": 1}\n{"id": 1, "day": "x"}\n', r"a\.json .*row 2: column day: .*'x'"),
        ("a.json", '{"id": 1}\n{"id": 12345678901234567890}\n', r"a\.json .*row 2: column id: "),
    ],
)
def test_the_error_names_file_row_and_column(lake, landing, put, name, content, said) -> None:
    put(name, content)
    error = lake.fail(orders(landing, columns=COLUMNS))
    with pytest.raises(InvalidArgument, match=said):
        raise error


def test_the_error_names_row_and_column_of_parquet(lake, landing, put) -> None:
    pq.write_table(pa.table({"id": ["1", "x"]}), put("a.parquet", ""))
    with pytest.raises(InvalidArgument, match=r"a\.parquet .*row 2: column id: .*'x'"):
        raise lake.fail(orders(landing, columns={"id": "BIGINT"}))


def test_a_merge_takes_the_good_rows(lake, landing, put) -> None:
    options: dict[str, Any] = {
        "mode": "merge",
        "keys": ["id"],
        "columns": {"id": "INT", "v": "INT"},
    }
    asset = orders(landing, on_bad_rows="quarantine", **options)
    put("a.csv", "id,v\n1,1\n2,x\n")
    run(lake, asset)
    put("b.csv", "id,v\n1,3\n1,y\n2,2\n", at=2000)
    run(lake, asset)
    assert lake.rows("orders") == [{"id": 1, "v": 3}, {"id": 2, "v": 2}]
    assert [row["row"] for row in quarantined(lake)] == ["2,x", "1,y"]


# ---- bad files


def test_files_that_cannot_be_read_are_skipped_until_they_can(lake, landing, put) -> None:
    bad: dict[str, str | bytes] = {
        "a.parquet": b"PAR1 no PAR1",
        "b.csv": b"id,v\n1,\xff\n",
        "c.csv.gz": b"no gzip",
        "d.csv.gz": gzip.compress(b"id,v\n1,2\n" * 500)[:-20],
        "e.csv": 'id,v\n1,"x\n2,y\n',
        "f.csv": "<html>\n",
    }
    for name, content in bad.items():
        put(name, content)
    put("g.csv", "id,v\n7,7\n")
    asset = orders(landing, columns={"id": "INT", "v": "STRING"}, on_bad_files="skip")
    metadata = run(lake, asset)
    assert ids(lake) == [7]
    assert metadata["delta/skipped_files"] == len(bad)
    reasons = metadata["delta/details"]["skipped_files"]
    assert {Path(uri).name for uri in reasons} == set(bad)
    assert "never closed" in next(text for uri, text in reasons.items() if "e.csv" in uri)
    assert metadata["delta/source_files"] == 1
    again = run(lake, asset)
    assert again["delta/skipped"] == "6 files cannot be read, and no other is new"
    assert again["delta/version"] == metadata["delta/version"]
    put("b.csv", "id,v\n1,mended\n", at=3000)
    assert run(lake, asset)["delta/skipped_files"] == len(bad) - 1
    assert ids(lake) == [1, 7]


def test_a_bad_row_fails_the_run_that_skips_files_alone(lake, landing, put) -> None:
    put("a.csv", "id\n1\nx\n")
    asset = orders(landing, columns={"id": "INT"}, on_bad_files="skip")
    with pytest.raises(InvalidArgument, match=r"a\.csv .*row 3: column id"):
        raise lake.fail(asset)


def test_a_new_column_fails_the_run_that_skips_files(lake, landing, put) -> None:
    put("a.csv", "id,more\n1,2\n")
    asset = orders(landing, columns={"id": "INT"}, on_bad_files="skip")
    assert isinstance(lake.fail(asset), SchemaMismatch)


def test_skipped_files_empty_no_table_in_the_mode_overwrite(lake, landing, put) -> None:
    asset = orders(landing, columns={"id": "INT"}, mode="overwrite", on_bad_files="skip")
    put("a.csv", "id\n1\n")
    run(lake, asset)
    put("b.csv", b"id\n\xff\n", at=2000)
    run(lake, asset)
    assert ids(lake) == [1]


def test_columns_of_a_skipped_file_do_not_reach_the_table(lake, landing, put) -> None:
    put("a.csv", "id\n1\n")
    put("b.csv", b"id,more\n1,\xff\n", at=2000)
    run(lake, orders(landing, on_bad_files="skip"))
    assert lake.rows("orders") == [{"id": 1}]


# ---- exactly once


class Killed(BaseException):
    pass


def quarantining(landing: Path, **options: Any) -> dg.AssetsDefinition:
    return orders(landing, columns=COLUMNS, on_bad_rows="quarantine", **options)


def test_a_run_that_ends_between_the_two_commits_doubles_nothing(
    lake, landing, put, monkeypatch
) -> None:
    put("a.csv", BAD["csv"])
    with monkeypatch.context() as patch:
        patch.setattr(file_assets, "write_asset", lambda *_: (_ for _ in ()).throw(OSError("gone")))
        assert not launch(lake, quarantining(landing)).success
    assert len(quarantined(lake)) == 4
    assert not (lake.root / "public" / "orders").exists()
    run(lake, quarantining(landing))
    assert len(quarantined(lake)) == 4
    assert {row["run_id"] for row in quarantined(lake)} == {lake.instance.get_runs()[0].run_id}
    assert ids(lake) == [1, 6]


def test_a_process_that_is_killed_between_the_two_commits_doubles_nothing(
    lake, landing, put
) -> None:
    put("a.csv", BAD["csv"])
    program = f"""
import os
import dagster as dg
from dagster_delta import DeltaIOManager, delta_files_asset
from dagster_delta.orchestration.incremental import file_assets
file_assets.write_asset = lambda *_: os._exit(9)
asset = delta_files_asset("orders", {str(landing)!r}, columns={COLUMNS!r}, on_bad_rows="quarantine")
dg.materialize([asset], resources={{"io_manager": DeltaIOManager(root_uri={str(lake.root)!r})}})
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True)
    assert done.returncode == 9
    assert len(quarantined(lake)) == 4
    run(lake, quarantining(landing, pattern=""))
    assert (len(quarantined(lake)), ids(lake)) == (4, [1, 6])


def test_a_retried_step_doubles_nothing(lake, landing, put, monkeypatch) -> None:
    put("a.csv", BAD["csv"])
    write, calls = write_asset, []

    def fail_once(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("gone")
        written = write(*arguments)
        if len(calls) == 2:
            raise OSError("gone after its commit")
        return written

    monkeypatch.setattr(file_assets, "write_asset", fail_once)
    asset = quarantining(landing, retry_policy=dg.RetryPolicy(max_retries=2))
    assert "no file is new" in run(lake, asset)["delta/skipped"]
    assert (len(quarantined(lake)), ids(lake)) == (4, [1, 6])


def test_a_load_that_is_repeated_with_other_columns_replaces_what_the_first_one_left_out(
    lake, landing, put, monkeypatch
) -> None:
    put("a.csv", "id,v\n1,x\ny,y\n")
    put("b.csv", "id,v\nz,1\n")
    with monkeypatch.context() as patch:
        patch.setattr(file_assets, "write_asset", lambda *_: (_ for _ in ()).throw(OSError("gone")))
        launch(lake, orders(landing, columns={"id": "INT", "v": "INT"}, on_bad_rows="quarantine"))
    assert len(quarantined(lake)) == 3
    columns = {"id": "STRING", "v": "INT"}
    run(lake, orders(landing, columns=columns, on_bad_rows="quarantine"))
    assert [row["row"] for row in quarantined(lake)] == ["1,x", "y,y"]
    assert ids(lake) == ["z"]


@pytest.mark.parametrize("mended", [BAD["csv"], "id,amount,day\n1,1,\n"])
def test_a_file_that_is_delivered_again_after_a_run_failed_is_quarantined_once(
    lake, landing, put, monkeypatch, mended
) -> None:
    put("a.csv", "id,amount,day\nzz,1,\n1,1,\n")
    run(lake, quarantining(landing))
    for at in (2000, 3000):
        put("b.csv", BAD["csv"], at=at)
        with monkeypatch.context() as patch:
            patch.setattr(
                file_assets, "write_asset", lambda *_: (_ for _ in ()).throw(OSError("gone"))
            )
            assert not launch(lake, quarantining(landing)).success
    put("b.csv", mended, at=4000)
    run(lake, quarantining(landing))
    found = [Path(row["file"]).name for row in quarantined(lake)]
    assert found == ["a.csv", *["b.csv"] * (4 if mended == BAD["csv"] else 0)]


def test_each_content_of_a_file_that_changes_is_quarantined_once(lake, landing, put) -> None:
    asset = quarantining(landing, changed_files="load")
    for at, row in ((1000, "x"), (2000, "y"), (1000, "x")):
        put("a.csv", f"id,amount,day\n{row},1,\n", at=at)
        run(lake, asset)
    assert sorted(row["row"] for row in quarantined(lake)) == ["x,1,", "y,1,"]


def test_a_load_that_is_repeated_keeps_the_rows_that_another_run_leaves_out_meanwhile(
    lake, landing, put, monkeypatch
) -> None:
    put("a.csv", BAD["csv"])
    with monkeypatch.context() as patch:
        patch.setattr(file_assets, "write_asset", lambda *_: (_ for _ in ()).throw(OSError("gone")))
        assert not launch(lake, quarantining(landing)).success
    put("b.csv", "id,amount,day\n8,x,\n9,,\n", at=2000)
    commit, count = Transaction.commit, []

    def late(*arguments: Any, **keywords: Any) -> Any:
        count.append(1)
        if len(count) == 1:
            run(lake, quarantining(landing, pattern="b.csv"))
        return commit(*arguments, **keywords)

    monkeypatch.setattr(Transaction, "commit", late)
    run(lake, quarantining(landing, pattern="a.csv"))
    assert (len(quarantined(lake)), ids(lake)) == (5, [1, 6, 9])


def test_two_runs_at_once_double_nothing(lake, landing, put, monkeypatch) -> None:
    put("a.csv", BAD["csv"])
    put("b.csv", "id,amount,day\n8,x,\n9,,\n", at=2000)
    write = FileLoad.write

    def slow(*arguments: Any) -> Any:
        # It has planned both files, of which the other run loads one meanwhile.
        monkeypatch.setattr(FileLoad, "write", write)
        run(lake, quarantining(landing, pattern="a.csv"))
        return write(*arguments)

    monkeypatch.setattr(FileLoad, "write", slow)
    run(lake, quarantining(landing))
    assert (len(quarantined(lake)), ids(lake)) == (5, [1, 6, 9])


@pytest.mark.parametrize("commits_before", [0, 1])
def test_runs_that_commit_between_the_commits_of_another_one_double_nothing(
    lake, landing, put, monkeypatch, commits_before
) -> None:
    put("a.csv", BAD["csv"])
    commit, count = Transaction.commit, []

    def late(*arguments: Any, **keywords: Any) -> Any:
        count.append(1)
        if len(count) == commits_before + 1:
            # The other run loads the same file, and creates both tables or one of them.
            run(lake, quarantining(landing))
        return commit(*arguments, **keywords)

    monkeypatch.setattr(Transaction, "commit", late)
    run(lake, quarantining(landing))
    assert (len(quarantined(lake)), ids(lake)) == (4, [1, 6])


def test_files_that_a_restore_takes_back_are_quarantined_once(lake, landing, put) -> None:
    put("a.csv", "id,amount,day\n1,,\n")
    run(lake, quarantining(landing))
    put("b.csv", BAD["csv"], at=2000)
    run(lake, quarantining(landing))
    lake.table("orders").restore(version=0)
    run(lake, quarantining(landing))
    assert (len(quarantined(lake)), ids(lake)) == (4, [1, 1, 6])


# ---- named files are loaded again


def test_named_files_are_appended_again(lake, landing, put) -> None:
    put("a.csv", "id\n1\n")
    put("b.csv", "id\n2\n", at=2000)
    asset = orders(landing)
    first = run(lake, asset)
    assert run(lake, asset, reload=["b.csv"])["delta/source_files"] == 1
    assert ids(lake) == [1, 2, 2]
    uris = first["delta/details"]["loaded_files"]
    assert run(lake, asset, reload=[uris[0]])["delta/details"]["loaded_files"] == [uris[0]]
    assert ids(lake) == [1, 1, 2, 2]
    assert run(lake, asset)["delta/skipped"] == "no file is new: 2 files loaded before"


def test_a_merge_replaces_the_rows_of_named_files_by_their_keys(lake, landing, put) -> None:
    columns = {"id": "INT", "v": "STRING"}
    options: dict[str, Any] = {"mode": "merge", "keys": ["id"], "new_columns": "ignore"}
    put("a.csv", "id,v,w\n1,a,b\n")
    run(lake, orders(landing, columns=columns, **options))
    wider = orders(
        landing, columns={**columns, "w": "STRING"}, metadata={"schema_mode": "merge"}, **options
    )
    run(lake, wider, reload=["*.csv"])
    assert lake.rows("orders") == [{"id": 1, "v": "a", "w": "b"}]


def test_a_file_that_is_loaded_again_has_its_bad_rows_once(lake, landing, put) -> None:
    put("a.csv", BAD["csv"])
    run(lake, quarantining(landing))
    run(lake, quarantining(landing), reload=["a.csv"])
    assert (len(quarantined(lake)), ids(lake)) == (4, [1, 1, 6, 6])


@pytest.mark.parametrize("fails_before", [True, False])
def test_a_run_that_is_re_executed_loads_named_files_again_once(
    stored_lake, landing, put, monkeypatch, fails_before
) -> None:
    lake, asset = stored_lake, orders(landing)
    put("a.csv", "id\n1\n")
    run(lake, asset)
    write = write_asset

    def fail(*arguments: Any) -> Any:
        if not fails_before:
            write(*arguments)
        raise OSError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(file_assets, "write_asset", fail)
        failed = launch(lake, asset, reload=["a.csv"])
    put("b.csv", "id\n2\n", at=2000)
    tags = {"dagster/is_resume_retry": "true", "dagster/parent_run_id": failed.run_id}
    assert launch(lake, asset, tags, reload=["a.csv"]).success
    assert ids(lake) == [1, 1, 2]


def test_a_file_to_load_again_that_is_not_there_is_an_error(lake, landing, put) -> None:
    put("a.csv", "id\n1\n")
    result = launch(lake, orders(landing), reload=["b.csv"])
    (event,) = result.filter_events(lambda event: event.is_step_failure)
    assert "b.csv is to be loaded again, and none of 1 file" in str(event.event_specific_data)
    assert not (lake.root / "public" / "orders").exists()


def test_the_run_config_knows_its_fields() -> None:
    with pytest.raises(InvalidArgument, match="did you mean 'reload'"):
        FilesConfig(reloads=["a.csv"])  # type: ignore[call-arg]


# ---- the quarantine itself


def test_a_table_of_another_purpose_is_not_written_to(lake, landing, put) -> None:
    other = DeltaTable(str(lake.root / "public" / "orders_quarantine"), must_exist=False)
    other.append(pa.table({"id": [1]}))
    put("a.csv", BAD["csv"])
    assert "another purpose" in str(lake.fail(quarantining(landing)))
    assert other.refresh().version == 0


def test_a_sensor_of_a_root_leaves_quarantines_out(lake, landing, put) -> None:
    put("a.csv", BAD["csv"])
    run(lake, quarantining(landing))
    mine = DeltaTable(str(lake.root / "public" / "my_quarantine"), must_exist=False)
    mine.append(pa.table({"id": [1]}))
    sensor = delta_table_sensor(name="all", root=str(lake.root), target=[quarantining(landing)])
    context = dg.build_sensor_context(instance=lake.instance)
    watched = str(sensor.evaluate_tick(context).cursor)
    assert "orders_quarantine" not in watched
    assert "public/orders" in watched
    assert "my_quarantine" in watched


def test_rows_that_come_from_no_file_are_quarantined_by_their_run(tmp_path) -> None:
    quarantine = Quarantine(str(tmp_path / "t_quarantine"), "t", {}, {"dagsterRunId": "r"})
    load = Load("dagster/r/t", 1)
    rows: Callable[[], Any] = lambda: iter([Row(load, "{}", ["positive", "known"])])  # noqa: E731
    for _ in range(2):
        assert quarantine.replace_rows({load: 1}, rows, {}) == 1
    (row,) = deltalake.DeltaTable(quarantine.uri).to_pyarrow_table().to_pylist()
    assert row["reasons"] == ["positive", "known"]
    assert (row["file"], row["row_number"], row["run_id"]) == (None, None, "r")
    assert quarantine.replace_rows({load: 0}, lambda: iter(()), {}) == 0
    assert not deltalake.DeltaTable(quarantine.uri).to_pyarrow_table().num_rows
    with pytest.raises(DeltaError):
        DeltaTable(str(tmp_path / "t")).snapshot()


def test_a_corrected_file_that_is_loaded_again_replaces_its_rows_in_the_quarantine(
    lake, landing, put
) -> None:
    asset = quarantining(landing, mode="merge", keys=["id"])
    put("a.csv", "id,amount,day\nx,1,\n2,zz,\n")
    put("b.csv", "id,amount,day\ny,1,\n")
    run(lake, asset)
    put("a.csv", "id,amount,day\nx,1,\n2,2,\n", at=2000)
    run(lake, asset, reload=["a.csv"])
    assert [row["row"] for row in quarantined(lake)] == ["x,1,", "y,1,"]
    assert ids(lake) == [2]


@pytest.mark.parametrize("reload", [[], ["a.csv"]])
def test_a_conflict_that_lasts_ends_the_run(lake, landing, put, monkeypatch, reload) -> None:
    put("a.csv", "id\n1\n")
    asset = orders(landing)
    run(lake, asset)
    put("b.csv", "id\n2\n")
    attempts = []

    def refuse(*_: Any) -> None:
        attempts.append(1)
        raise ConcurrentTransaction("lasting") if len(attempts) < 5 else OSError("again and again")

    monkeypatch.setattr(file_assets, "write_asset", refuse)
    assert not launch(lake, asset, **({"reload": reload} if reload else {})).success
    assert len(attempts) == 1


# ---- the page


def test_the_program_of_the_page_loads_what_is_good(tmp_path, monkeypatch) -> None:
    page = (Path(__file__).parents[3] / "docs" / "files.md").read_text()
    blocks = dict(re.findall(r'```\w+ title="(.*?)"\n(.*?)```', page, re.DOTALL))
    monkeypatch.chdir(tmp_path)
    arrived = tmp_path / "landing" / "orders"
    arrived.mkdir(parents=True)
    (arrived / "2026-03-01-a.csv").write_text("id,amount,day,note\n1,9.5,2026-03-01,x\ny,1,,\n")
    (arrived / "0301.csv").write_text("id,amount\n2,9.555\n")
    (arrived / "bad.csv").write_bytes(b"id,amount\n3,\xff\n")
    names: dict[str, Any] = {}
    exec(blocks["landing.py"], names)
    job = names["defs"].resolve_implicit_global_asset_job_def()
    with dg.DagsterInstance.ephemeral() as instance:
        result = job.execute_in_process(instance=instance)
        metadata = plain(result.asset_materializations_for_node("orders")[0].metadata)
        job.execute_in_process(instance=instance, run_config=yaml.safe_load(blocks["reload.yaml"]))
    assert metadata["delta/ignored_columns"] == ["note"]
    assert metadata["delta/quarantined_rows"] == 2
    assert metadata["delta/skipped_files"] == 1
    assert [row["id"] for row in stored_rows(DeltaTable("lake/public/orders"))] == [1, 1]
    left_out = DeltaTable("lake/public/orders_quarantine")
    found = left_out.snapshot().scan().to_arrow()
    assert sorted(found["row"].to_pylist()) == ["2,9.555", "y,1,,"]
    described = re.findall(r"(?m)^\| (`.*?) \| [A-Z]", page.partition("| Column |")[2])
    assert re.findall(r"`(\w+)`", " ".join(described)) == found.schema.names
    (where,) = re.findall(r'\.delete\("(.*?)"\)', page)
    left_out.delete(where)
    assert left_out.snapshot().scan().to_arrow()["row"].to_pylist() == ["y,1,,"]
