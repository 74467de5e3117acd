"""Files of a landing zone as assets: each is loaded once, whatever happens to the run."""

from __future__ import annotations

import datetime as dt
import gzip
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import dagster as dg
import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_delta import DeltaIOManager, DeltaTable, delta_files_asset, delta_files_sensor
from dagster_delta.errors import DeltaError, InvalidArgument, SchemaMismatch
from dagster_delta.orchestration.incremental.file_assets import FileLoad
from dagster_delta.orchestration.incremental.landing_files import LandingFiles, LandingZone
from dagster_delta.storage import ObjectMeta, open_store
from dagster_delta.table.transaction.transaction import Transaction

Rows = list[dict[str, Any]]


@pytest.fixture
def run(tmp_path: Path) -> Callable[[dg.AssetsDefinition], dict[str, Any]]:
    """Materializes the asset, and gives its metadata."""
    manager = DeltaIOManager(root_uri=str(tmp_path / "lake"))

    def run(asset: dg.AssetsDefinition) -> dict[str, Any]:
        result = dg.materialize([asset], resources={"io_manager": manager})
        (event,) = result.get_asset_materialization_events()
        return {key: value.value for key, value in event.materialization.metadata.items()}

    return run


def rows(tmp_path: Path) -> Rows:
    """As the reference implementation reads them."""
    found = deltalake.DeltaTable(str(tmp_path / "lake/public/flights")).to_pyarrow_table()
    return sorted(found.to_pylist(), key=str)


def flights(landing: Path, pattern: str = "**", **options: Any) -> dg.AssetsDefinition:
    return delta_files_asset("flights", f"{landing}/{pattern}", **options)


def test_each_file_is_loaded_once(landing, put, run, tmp_path) -> None:
    put("a.csv", "id,day\n1,2024-01-01\n2,2024-01-02\n")
    put("_SUCCESS", "")
    first = run(flights(landing))
    assert (first["delta/source_files"], first["delta/rows_written"]) == (1, 2)
    again = run(flights(landing))
    assert again["delta/skipped"] == "no file is new: 1 file loaded before"
    assert again["delta/version"] == 0
    put("sub/b.csv", "day,id\n2024-01-03,3\n", at=900)
    second = run(flights(landing))
    assert second["delta/source_files"] == 1
    assert [row["id"] for row in rows(tmp_path)] == [1, 2, 3]
    assert str(rows(tmp_path)[2]["day"]) == "2024-01-03"


def test_formats_and_compressions_follow_from_names(landing, put, run, tmp_path) -> None:
    put("a.csv.gz", gzip.compress(b"id,name\n1,NA\n2,\n"))
    put("b.jsonl", '{"id": 3, "name": "x"}\n{"id": 4}\n')
    pq.write_table(pa.table({"id": [5], "name": ["y"]}), landing / "c.parquet")
    run(flights(landing))
    assert {row["id"]: row["name"] for row in rows(tmp_path)} == {
        1: "NA",
        2: None,
        3: "x",
        4: None,
        5: "y",
    }


def test_types_are_given_or_those_of_the_table(landing, put, run, tmp_path) -> None:
    put("a.csv", "id;code;more\n1;007;x\n")
    options: dict[str, Any] = {"columns": {"id": "INT", "code": "STRING"}, "delimiter": ";"}
    run(flights(landing, new_columns="ignore", **options))
    put("b.csv", "id;code\n2;008\n", at=2000)
    run(flights(landing, delimiter=";"))
    assert rows(tmp_path) == [{"id": 1, "code": "007"}, {"id": 2, "code": "008"}]


def test_a_first_file_without_values_needs_types(landing, put, run, tmp_path) -> None:
    put("a.csv", "id,name\n")
    with pytest.raises(InvalidArgument, match=r"column id .* has no type; .* say it in `columns`"):
        run(flights(landing))
    run(flights(landing, columns={"id": "INT", "name": "STRING"}))
    put("b.csv", "id,name\n1,x\n", at=2000)
    run(flights(landing))
    assert rows(tmp_path) == [{"id": 1, "name": "x"}]


def test_the_last_row_of_a_key_is_merged(landing, put, run, tmp_path) -> None:
    put("b.csv", "id,n\n1,1\n2,1\n", at=1000)
    put("a.csv", "id,n\n2,2\n,9\n", at=2000)
    asset = flights(landing, mode="merge", keys=["id"])
    run(asset)
    put("c.csv", "id,n\n1,3\n1,4\n,8\n", at=3000)
    metadata = run(asset)
    assert metadata["delta/rows_updated"] == 2
    found = {row["id"]: row["n"] for row in rows(tmp_path)}
    assert found == {1: 4, 2: 2, None: 8}


@pytest.mark.parametrize(
    ("keys", "count"),
    [
        (pa.array([0.0, -0.0, 0.0]), 1),
        (pa.array([float("nan"), -float("nan"), 1.0]), 2),
        (pa.array([1, 999, 1000], pa.timestamp("ns", "UTC")), 2),
        (pa.array([-1, -999, -1000], pa.timestamp("ns")), 1),
        (pa.array(["a", "b", "a"]).dictionary_encode(), 2),
        (pa.array([0.0, -0.0, 1.5], pa.float16()), 2),
        (pa.array([bytes(16)] * 3, pa.binary(16)).cast(pa.uuid()), 1),
        (pa.array(["a", "b", "a"], pa.string_view()), 2),
    ],
    ids=[
        "zeros",
        "not a number",
        "nanoseconds",
        "before 1970",
        "dictionary",
        "half floats",
        "uuids",
        "views",
    ],
)
def test_keys_that_are_equal_in_the_table_are_one_key(landing, run, tmp_path, keys, count) -> None:
    asset = flights(landing, mode="merge", keys=["k"])
    for name in ("a.parquet", "b.parquet"):
        pq.write_table(pa.table({"k": keys, "n": [1, 2, 3]}), landing / name)
        run(asset)
    found = rows(tmp_path)
    assert len(found) == count
    assert 3 in [row["n"] for row in found]


def test_a_key_that_cannot_be_compared_is_refused_by_name(landing, run) -> None:
    pq.write_table(pa.table({"k": [{"a": 1}], "n": [1]}), landing / "a.parquet")
    with pytest.raises(InvalidArgument, match=r"cannot identify rows by k, .*struct<a: int64>"):
        run(flights(landing, mode="merge", keys=["k"]))


def test_new_files_replace_the_rows(landing, put, run, tmp_path) -> None:
    put("a.csv", "id\n1\n")
    run(flights(landing, mode="overwrite"))
    run(flights(landing, mode="overwrite"))
    assert rows(tmp_path) == [{"id": 1}]
    put("b.csv", "id\n2\n")
    run(flights(landing, mode="overwrite"))
    assert rows(tmp_path) == [{"id": 2}]


def test_a_file_ahead_of_the_clock_is_loaded_unless_an_age_is_asked_for(
    landing, put, run, tmp_path, capfd
) -> None:
    put("a.csv", "id\n1\n")
    put("b.csv", "id\n2\n", at=2**33)
    run(flights(landing, minimum_age_seconds=60))
    assert rows(tmp_path) == [{"id": 1}]
    logged = capfd.readouterr().err
    assert "b.csv, without bytes or modified less than 60 seconds ago" in logged
    run(flights(landing))
    assert rows(tmp_path) == [{"id": 1}, {"id": 2}]


def test_a_run_without_files_says_that_it_wrote_nothing(landing, put, run) -> None:
    assert run(flights(landing, "*.csv"))["delta/skipped"] == f"no file matches {landing}/*.csv"
    put("a.csv", "")
    assert "a.csv" in run(flights(landing, "*.csv"))["delta/skipped"]
    put("a.csv", "id\n1\n")
    assert "delta/skipped" not in run(flights(landing, "*.csv"))


@pytest.mark.parametrize("pattern", ["**", "b.csv"])
def test_a_file_without_bytes_is_left_until_it_is_written(
    landing, put, run, tmp_path, pattern
) -> None:
    put("a.csv", "id\n1\n")
    run(flights(landing, mode="overwrite"))
    put("b.csv", "", at=2000)
    assert "delta/skipped" in run(flights(landing, pattern, mode="overwrite"))
    assert rows(tmp_path) == [{"id": 1}]
    put("b.csv", "id\n2\n", at=3000)
    run(flights(landing, pattern, mode="overwrite"))
    assert rows(tmp_path) == [{"id": 2}]


def test_a_changed_file_is_loaded_again_only_if_asked_for(landing, put, run, tmp_path) -> None:
    put("a.csv", "id\n1\n")
    run(flights(landing))
    put("a.csv", "id\n2\n", at=2000)
    assert "delta/skipped" in run(flights(landing))
    run(flights(landing, changed_files="load"))
    assert "delta/skipped" in run(flights(landing, changed_files="load"))
    assert rows(tmp_path) == [{"id": 1}, {"id": 2}]


def test_a_file_with_an_older_time_is_a_changed_file(landing, put, run, tmp_path) -> None:
    put("a.csv", "id\n1\n")
    run(flights(landing))
    put("a.csv", "id\n2\n", at=500)
    details = run(flights(landing))["delta/details"]
    assert details["changed_files_not_loaded"] == [f"file://{landing}/a.csv"]
    run(flights(landing, changed_files="load"))
    DeltaTable(str(tmp_path / "lake/public/flights")).checkpoint()
    assert "delta/skipped" in run(flights(landing, changed_files="load"))
    assert rows(tmp_path) == [{"id": 1}, {"id": 2}]


@pytest.mark.parametrize(
    "options", [{}, {"mode": "merge", "keys": ["id"]}], ids=["append", "merge"]
)
def test_first_runs_at_the_same_time_both_succeed(
    landing, put, run, tmp_path, monkeypatch, options
) -> None:
    put("a.csv", "id\n1\n")
    put("b.csv", "id\n2\n", at=2000)
    commit = Transaction.commit

    def late(*arguments: Any, **keywords: Any) -> Any:
        # The table did not exist when this run began, and does when it commits.
        monkeypatch.setattr(Transaction, "commit", commit)
        run(flights(landing, "a.csv", **options))
        return commit(*arguments, **keywords)

    monkeypatch.setattr(Transaction, "commit", late)
    assert run(flights(landing, **options))["delta/source_files"] == 1
    assert rows(tmp_path) == [{"id": 1}, {"id": 2}]


def test_files_without_rows_that_empty_a_table_are_a_warning(
    landing, put, run, tmp_path, capfd
) -> None:
    put("a.csv", "id\n1\n")
    run(flights(landing, mode="overwrite"))
    assert "emptied the table" not in capfd.readouterr().err
    put("b.csv", "id\n")
    run(flights(landing, mode="overwrite"))
    assert "emptied the table; RESTORE to version 0" in capfd.readouterr().err
    assert rows(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.csv", "id,city\n1,Orléans\n"), ("a.json", '{"id": 1, "city": "Orléans"}\n')],
)
def test_text_in_another_encoding_is_refused_until_it_is_named(
    landing, put, run, tmp_path, name, text
) -> None:
    put(name, text.encode("latin-1"))
    with pytest.raises(DeltaError, match=rf"{name} .*decode byte 0xe9 .*name its `encoding`"):
        run(flights(landing))
    with pytest.raises(DeltaError, match=rf"{name} cannot be loaded .*UTF-16"):
        run(flights(landing, encoding="utf-16"))
    run(flights(landing, encoding="latin-1"))
    put("b" + name, text.encode("utf-16"), at=2000)
    run(flights(landing, f"b{name}", encoding="utf-16"))
    assert rows(tmp_path) == [{"id": 1, "city": "Orléans"}] * 2


def test_a_field_that_appears_late_in_json_is_named_in_columns(landing, put, run, tmp_path) -> None:
    line = '{"id": 1, "text": "' + "x" * 1000 + '"}\n'
    put("a.json", line * 8500 + '{"id": 2, "more": 3, "other": 4}\n')
    with pytest.raises(DeltaError, match=r"unexpected field.*in `columns`.* its first 8 MiB"):
        run(flights(landing))
    columns = {"id": "INT", "more": "INT", "text": "STRING"}
    run(flights(landing, columns=columns, new_columns="ignore"))
    assert [row["more"] for row in rows(tmp_path) if row["id"] == 2] == [3]


def test_no_file_is_loaded_by_two_runs_at_once(landing, put, run, tmp_path, monkeypatch) -> None:
    put("a.csv", "id\n1\n")
    write = FileLoad.write

    def slow(*arguments: Any) -> Any:
        monkeypatch.setattr(FileLoad, "write", write)
        run(flights(landing))
        return write(*arguments)

    monkeypatch.setattr(FileLoad, "write", slow)
    assert run(flights(landing))["delta/skipped"] == "no file is new: 1 file loaded before"
    assert rows(tmp_path) == [{"id": 1}]


def test_a_run_loads_the_files_that_a_concurrent_run_did_not_see(
    landing, put, run, tmp_path, monkeypatch
) -> None:
    put("a.csv", "id\n1\n")
    put("b.csv", "id\n2\n", at=2000)
    write = FileLoad.write

    def slow(*arguments: Any) -> Any:
        monkeypatch.setattr(FileLoad, "write", write)
        run(flights(landing, "a.csv"))
        return write(*arguments)

    monkeypatch.setattr(FileLoad, "write", slow)
    assert run(flights(landing))["delta/source_files"] == 1
    assert rows(tmp_path) == [{"id": 1}, {"id": 2}]


def test_names_of_columns_match_whatever_their_case(landing, put, run, tmp_path) -> None:
    put("a.csv", "ID,Code\n1,007\n")
    pq.write_table(pa.table({"Code": ["008"], "iD": [2]}), landing / "b.parquet")
    run(flights(landing, columns={"id": "INT", "code": "STRING"}))
    put("c.csv", "CODE,Id\n009,3\n", at=2000)
    run(flights(landing))
    put("d.json", '{"ID": 4, "code": "010"}\n')
    run(flights(landing))
    codes = {row["id"]: row["code"] for row in rows(tmp_path)}
    assert codes == {1: "007", 2: "008", 3: "009", 4: "010"}
    put("e.json", '{"ID": 1, "id": 1}\n')
    with pytest.raises(DeltaError, match="several columns 'ID'"):
        run(flights(landing))


def test_new_fields_inside_of_a_column_are_added_or_refused(landing, put, run, tmp_path) -> None:
    put("a.json", '{"id": 1, "v": {"a": 1, "on": "2024-01-01"}, "l": [{"b": 1}]}\n')
    columns = {"id": "BIGINT", "v": "STRUCT<a: INT, on: DATE>", "l": "ARRAY<STRUCT<b: BIGINT>>"}
    run(flights(landing, columns=columns))
    put("b.json", '{"id": 2, "v": {"a": 2, "c": 7}, "l": [{"b": 2, "d": "x"}]}\n', at=2000)
    with pytest.raises(SchemaMismatch, match=r"l.element.d|v.c"):
        run(flights(landing))
    run(flights(landing, metadata={"schema_mode": "merge"}))
    first, second = rows(tmp_path)
    assert first["v"] == {"a": 1, "on": dt.date(2024, 1, 1), "c": None}
    assert second["v"] == {"a": 2, "on": None, "c": 7}
    assert second["l"] == [{"b": 2, "d": "x"}]
    put("b2.json", '{"id": 3, "v": {"a": 3, "none": null}, "l": []}\n', at=2500)
    run(flights(landing))
    assert rows(tmp_path)[2] == {"id": 3, "v": {"a": 3, "on": None, "c": None}, "l": []}
    put("c.json", '{"id": 4, "v": {"A": 4}, "l": []}\n', at=3000)
    with pytest.raises(DeltaError, match=r"column v\.a twice"):
        run(flights(landing, metadata={"schema_mode": "merge"}))


def test_an_unknown_encoding_is_refused_at_once(landing) -> None:
    with pytest.raises(InvalidArgument, match="encoding of flights is 'utf9'"):
        flights(landing, encoding="utf9")


def test_a_line_that_is_null_is_no_row(landing, put, run, tmp_path) -> None:
    put("a.json", 'null\n{"id": 1}\n')
    with pytest.raises(DeltaError, match=r"a\.json .*a line is null"):
        run(flights(landing))


def test_json_has_dates_as_text(landing, put, run, tmp_path) -> None:
    put("a.json", '{"id": 1, "day": "2024-01-31", "s": {"days": ["2024-02-29"]}}\n{"id": 2}\n')
    columns = {"id": "INT", "day": "DATE", "s": "STRUCT<days: ARRAY<DATE>>"}
    run(flights(landing, columns=columns))
    put("b.json", '{"id": 3, "day": "2024-02-01"}\n', at=2000)
    run(flights(landing))
    days = {row["id"]: row["day"] for row in rows(tmp_path)}
    assert days == {1: dt.date(2024, 1, 31), 2: None, 3: dt.date(2024, 2, 1)}
    assert rows(tmp_path)[0]["s"] == {"days": [dt.date(2024, 2, 29)]}


def test_a_file_that_is_replaced_while_it_is_loaded_is_not_loaded(landing, put) -> None:
    put("a.csv", "id\n1\n")
    rows = LandingZone(str(landing)).files().check(pa.schema([])).to_reader()
    put("a.csv", "id\n2\n", at=2000)
    with pytest.raises(DeltaError, match=r"a.csv .* changed while it was loaded"):
        rows.read_all()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("b.csv", "id\nx\n", "b.csv"),
        ("b.csv", "id,id\n1,2\n", "several columns 'id'"),
        ("b.parquet", "no Parquet", "b.parquet"),
        ("b.json", "[1", "b.json"),
        ("b.txt", "?", "give `format`"),
        ("b.csv.tmp", "id\n1\n", "give `format`"),
        ("b.csv.lz4", "id\n1\n", "give `format`"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_and_nothing_loaded(
    landing, put, run, tmp_path, name, content, said
) -> None:
    put("a.csv", "id\n1\n")
    run(flights(landing))
    put("c.csv", "id\n3\n")
    put(name, content, at=2000)
    with pytest.raises(DeltaError) as caught:
        run(flights(landing))
    assert said in str(caught.value)
    assert rows(tmp_path) == [{"id": 1}]
    (landing / name).unlink()
    run(flights(landing))
    assert rows(tmp_path) == [{"id": 1}, {"id": 3}]


@pytest.mark.parametrize(
    ("file", "text", "ids"),
    [
        ("a.csv", "id,v\n18446744073709551615,1\n", ["18446744073709551615"]),
        ("a.csv", "id,v\n9007199254740993,1\n1.5,2\n", ["1.5", "9007199254740993"]),
        ("a.json", '{"id": 9223372036854775808}\n', ["9223372036854775808"]),
        ("a.json", '{"id": 9007199254740993}\n{"id": 1.5}\n', ["1.5", "9007199254740993"]),
    ],
)
def test_digits_of_long_numbers_are_not_lost(landing, put, run, tmp_path, file, text, ids) -> None:
    put(file, text)
    with pytest.raises(DeltaError, match=r"column id has the number \S+, .* DECIMAL\(38, 0\)"):
        run(flights(landing))
    run(flights(landing, columns={"id": "DECIMAL(38, 1)"}, new_columns="ignore"))
    assert sorted(row["id"] for row in rows(tmp_path)) == [Decimal(each) for each in ids]


def test_digits_of_numbers_inside_are_not_lost(landing, put, run, tmp_path) -> None:
    put("a.json", '{"id": {"parts": [1, 9223372036854775808]}}\n')
    with pytest.raises(DeltaError, match=r"column id has the number 9\.22337e"):
        run(flights(landing))
    run(flights(landing, columns={"id": "STRUCT<parts: ARRAY<DECIMAL(20, 0)>>"}))
    assert rows(tmp_path)[0]["id"]["parts"][1] == 9223372036854775808


def test_keys_match_whatever_their_case(landing, put, run, tmp_path) -> None:
    put("a.json", '{"ID": 1, "v": "x"}\n{"ID": 1, "v": "y"}\n')
    run(flights(landing, mode="merge", keys=["id"]))
    put("b.csv", "Id,V\n1,z\n2,w\n")
    run(flights(landing, mode="merge", keys=["id"]))
    assert rows(tmp_path) == [{"ID": 1, "v": "z"}, {"ID": 2, "v": "w"}]


def test_decimals_of_json_are_texts_or_numbers(landing, put, run, tmp_path) -> None:
    put("a.json", '{"price": "1.5"}\n{"price": 2.5}\n')
    run(flights(landing, columns={"price": "DECIMAL(8, 2)"}))
    assert [row["price"] for row in rows(tmp_path)] == [Decimal("1.50"), Decimal("2.50")]


def test_a_value_that_does_not_fit_is_said_with_its_column(landing, put, run) -> None:
    put("a.csv", "id,code\n1,x\n")
    with pytest.raises(DeltaError, match=r"a\.csv .*row 2: column code: .* value 'x'"):
        run(flights(landing, columns={"id": "INT", "code": "INT"}))


def test_numbers_are_no_times(landing, put, run) -> None:
    put("a.csv", "at\n1700000000\n")
    with pytest.raises(DeltaError, match="column at has numbers"):
        run(flights(landing, columns={"at": "TIMESTAMP"}))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('id,v\n1,"O\\"Neil"\n', r"backslash stands before a quote"),
        ('v,id\n"x, \\"y\\"",1\n', r"backslash stands before a quote"),
        ('id,v\n1,2\n3,"a\\""b, \\"c\\""\n', r"backslash stands before a quote"),
    ],
)
def test_csv_values_that_would_be_misread_are_refused(landing, put, run, text, said) -> None:
    put("a.csv", text)
    with pytest.raises(DeltaError, match=said):
        run(flights(landing))


def test_a_backslash_before_a_quote_may_be_text(landing, put, run, tmp_path) -> None:
    lines = ['"C:\\dir\\",1', '24\\" wheel,2', '"a\\""b",3', '"c,",say \\"hi', '"d",\\"e']
    put("a.csv", "\r".join(["v,w", *lines, ""]))
    run(flights(landing))
    assert {(row["v"], row["w"]) for row in rows(tmp_path)} == {
        ("C:\\dir\\", "1"),
        ('24\\" wheel', "2"),
        ('a\\"b', "3"),
        ("c,", 'say \\"hi'),
        ("d", '\\"e'),
    }


def test_times_of_json_have_an_offset_or_none(landing, put, run, tmp_path) -> None:
    put("a.json", '{"at": "2026-03-01T10:00:00"}\n{"at": "2026-03-01T10:00:00+02:00"}\n')
    with pytest.raises(DeltaError, match="expected a zone offset"):
        run(flights(landing))
    put("a.json", '{"at": "2026-03-01T10:00:00Z"}\n{"at": "2026-03-01T10:00:00+02:00"}\n')
    for _ in range(2):
        # The second time, the type is that of the table.
        run(flights(landing, changed_files="load"))
        put("a.json", '{"at": "2026-03-01T10:00:00+02:00"}\n{"at": null}\n', at=2000)
    assert sorted(str(row["at"]) for row in rows(tmp_path)) == [
        *("2026-03-01 08:00:00", "2026-03-01 08:00:00", "2026-03-01 10:00:00", "None"),
    ]
    put("b.json", '{"since": "2026-03-01T10:00:00"}\n{"since": "2026-03-01T10:00:00+02:00"}\n')
    merged = {"schema_mode": "merge"}
    run(flights(landing, "b.json", columns={"since": "TIMESTAMP"}, metadata=merged))
    times = {row["since"] for row in rows(tmp_path)} - {None}
    assert {f"{time:%H:%M}" for time in times} == {"10:00", "08:00"}


def test_files_whose_columns_have_different_types_ask_for_types(landing, put, run) -> None:
    put("a.csv", "id\n1\n")
    put("b.csv", "id\nx\n")
    with pytest.raises(DeltaError, match="name the columns and their types"):
        run(flights(landing))


def test_decimals_are_not_rounded_to_the_type_of_another_file(landing, put, run) -> None:
    exact = put("a.parquet", b"")
    pq.write_table(pa.table({"v": [Decimal("12345678901234567.89")]}), exact)
    pq.write_table(pa.table({"v": [1.5]}), put("b.parquet", b""))
    with pytest.raises(DeltaError, match=r"a\.parquet .*would round .*types in `columns`"):
        run(flights(landing))


def test_types_that_hold_the_values_of_each_file_are_taken(landing, put, run, tmp_path) -> None:
    values = [
        pa.array([7], pa.int32()),
        pa.array([None], pa.null()),
        pa.array([Decimal("1.25")], pa.decimal128(14, 2)),
    ]
    structs = [[{"x": 1}], [None], [{"x": 2, "decimals": Decimal("2.50")}]]
    for name, value, struct in zip("abc", values, structs, strict=True):
        pq.write_table(pa.table({"v": value, "s": struct}), put(f"{name}.parquet", b""))
    run(flights(landing))
    assert {str(row["v"]) for row in rows(tmp_path)} == {"7.00", "1.25", "None"}


@pytest.mark.parametrize("changed_files", ["skip", "load"])
def test_files_whose_rows_a_restore_took_back_are_loaded_again(
    landing, put, run, tmp_path, changed_files
) -> None:
    asset = flights(landing, changed_files=changed_files)
    put("a.csv", "id\n1\n")
    run(asset)
    put("b.csv", "id\n2\n")
    run(asset)
    DeltaTable(str(tmp_path / "lake/public/flights")).restore(0)
    assert rows(tmp_path) == [{"id": 1}]
    assert run(asset)["delta/source_files"] == 1
    assert rows(tmp_path) == [{"id": 1}, {"id": 2}]
    assert "delta/skipped" in run(asset)


def test_a_table_that_forgets_transactions_is_refused(landing, put, run, tmp_path) -> None:
    put("a.csv", "id\n1\n")
    run(flights(landing))
    DeltaTable(str(tmp_path / "lake/public/flights")).alter(
        "SET TBLPROPERTIES ('delta.setTransactionRetentionDuration' = 'interval 1 day')"
    )
    with pytest.raises(DeltaError, match="forgets what it"):
        run(flights(landing))


def test_one_key_may_be_a_text_and_other_resources_are_passed_on(landing, put, tmp_path) -> None:
    put("a.csv", "id,v\n1,a\n")
    put("b.csv", "id,v\n1,b\n", at=2000)
    asset = flights(landing, mode="merge", keys="id", required_resource_keys={"other"})
    resources = {"io_manager": DeltaIOManager(root_uri=str(tmp_path / "lake")), "other": object()}
    assert dg.materialize([asset], resources=resources).success
    assert rows(tmp_path) == [{"id": 1, "v": "b"}]


def test_options_that_do_not_fit_are_refused(landing) -> None:
    with pytest.raises(DeltaError, match="keys"):
        flights(landing, mode="merge")
    with pytest.raises(DeltaError, match="partitions_def"):
        flights(landing, partitions_def=dg.StaticPartitionsDefinition(["a"]))


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("*.csv", {"a.csv"}),
        ("**/*.csv", {"a.csv", "x/b.csv", "x/y/c.csv"}),
        ("x/**", {"x/b.csv", "x/y/c.csv"}),
        ("x/?.csv", {"x/b.csv"}),
        ("x", {"b.csv", "y/c.csv"}),
        ("x/", {"b.csv", "y/c.csv"}),
        ("a.csv", {"a.csv"}),
        ("*/*", {"x/b.csv"}),
    ],
)
def test_patterns_match_as_in_a_shell(landing, put, source, names) -> None:
    for name in ("a.csv", "x/b.csv", "x/y/c.csv", "x/.hidden.csv", "_temporary/d.csv"):
        put(name, "id\n1\n")
    found = LandingZone(f"{landing}/{source}").files()
    prefix = f"{source.split('*')[0].split('?')[0].rpartition('/')[0]}/".lstrip("/")
    paths = {file.path for file in found.files}
    assert paths in (names, {name.removeprefix(prefix) for name in names})


@pytest.mark.parametrize("source", ["landng", "landng/*.csv", "landng/a.csv"])
def test_a_directory_that_does_not_exist_is_an_error(tmp_path, run, source) -> None:
    with pytest.raises(DeltaError, match=r"there is no directory .*landng: correct the source"):
        run(delta_files_asset("flights", f"{tmp_path}/{source}"))


def test_a_file_that_has_not_arrived_is_waited_for(landing, tmp_path) -> None:
    assert not LandingZone(f"{landing}/daily.csv").files().files
    assert not LandingZone(f"{landing}/*.csv").files().files


@pytest.mark.parametrize("source", ["**", "lake/**/*.parquet", "lake/t"])
def test_files_of_a_delta_table_are_refused(landing, run, source) -> None:
    DeltaTable(str(landing / "lake" / "t"), must_exist=False).append(pa.table({"id": [1]}))
    with pytest.raises(DeltaError, match="a file of a Delta table: read the table as an asset"):
        run(flights(landing, source))


def test_a_file_without_the_columns_to_load_is_refused(landing, put, run) -> None:
    put("a.csv", "id;code\n1;x\n")
    with pytest.raises(DeltaError, match=r"has the columns id;code, and not id: .* `delimiter`"):
        run(flights(landing, columns={"id": "INT", "code": "STRING"}))


@pytest.mark.parametrize("kind", ["csv", "json"])
@pytest.mark.parametrize("mode", ["append", "merge"])
def test_a_misspelled_name_is_refused(landing, put, run, mode, kind) -> None:
    put("a.csv", "id,name,city\n1,Ada,Delft\n")
    types = {"id": "INT", "name": "STRING", "city": "STRING"}
    asset = flights(landing, mode=mode, keys=["id"] if mode == "merge" else [], columns=types)
    run(asset)
    text = {
        "csv": "id,nmae,city\n1,Ada,Paris\n",
        "json": '{"id": 1, "nmae": "Ada", "city": "Paris"}',
    }
    put(f"b.{kind}", text[kind])
    with pytest.raises(DeltaError, match=r"b\.\w+ .*it has a column nmae, and none name"):
        run(asset)


def test_a_file_without_a_new_column_is_loaded(landing, put, run, tmp_path) -> None:
    put("old.csv", "id,city_code\n1,D\n")
    put("old.json", '{"id": 2}\n')
    columns = {"id": "INT", "city_name": "STRING"}
    run(flights(landing, columns=columns, new_columns="ignore"))
    assert rows(tmp_path) == [
        {"id": 1, "city_name": None},
        {"id": 2, "city_name": None},
    ]


@pytest.mark.parametrize(("kind", "text"), [("csv", "id,city\n1,Paris\n"), ("json", '{"id": 1}')])
def test_a_merge_does_not_erase_a_column_that_a_file_lacks(landing, put, run, kind, text) -> None:
    put(f"a.{kind}", text)
    columns = {"id": "INT", "name": "STRING", "city": "STRING"}
    with pytest.raises(DeltaError, match=rf"a\.{kind} .*no column name, and a merge would set"):
        run(flights(landing, mode="merge", keys=["id"], columns=columns))


@pytest.mark.parametrize(
    ("kind", "text"),
    [("csv", "id,city\n1,Paris\n2,Oslo\n"), ("json", '{"id": 1, "city": "Paris"}\n{"id": 2}')],
)
def test_a_merge_leaves_the_columns_of_the_table_that_no_line_has(
    landing, put, run, tmp_path, kind, text
) -> None:
    put("a.csv", "id,name,city\n1,Ada,Delft\n")
    run(flights(landing, mode="merge", keys=["id"]))
    put(f"b.{kind}", text)
    with pytest.raises(DeltaError, match="no column name"):
        run(flights(landing, mode="merge", keys=["id"]))
    run(flights(landing, mode="merge", keys=["id"], metadata={"schema_mode": "merge"}))
    assert rows(tmp_path)[0] == {"id": 1, "name": "Ada", "city": "Paris"}


@pytest.mark.parametrize(
    ("kind", "text"), [("csv", "id,name\n1,Eve\n"), ("json", '{"id": 1, "name": "Eve"}')]
)
def test_a_merge_does_not_erase_a_column_that_another_file_of_the_run_has(
    landing, put, run, tmp_path, kind, text
) -> None:
    put("a.csv", "id,name,city\n1,Ada,Paris\n")
    asset = flights(landing, mode="merge", keys=["id"])
    run(asset)
    put(f"b.{kind}", text, at=2000)
    put("c.csv", "id,name,city\n2,Bob,Delft\n", at=3000)
    with pytest.raises(DeltaError, match=rf"b\.{kind} .*no column city, and a merge would set"):
        run(asset)
    assert rows(tmp_path) == [{"id": 1, "name": "Ada", "city": "Paris"}]


@pytest.mark.parametrize(
    "text",
    ['id,v\n1,"x\n2,y\n3,z\n', 'id,v\n1,x\n2,"4\n3,5\n', 'id,v\n1,"x', 'v,id\n"x,1\ny,2\n'],
)
def test_a_quote_that_is_never_closed_takes_no_lines(landing, put, run, text) -> None:
    put("a.csv.gz", gzip.compress(text.encode()))
    with pytest.raises(DeltaError, match=r"a\.csv\.gz .*(a quote is never closed|Expected 2 col)"):
        run(flights(landing))


def test_a_value_may_end_with_blank_lines(landing, put, run, tmp_path) -> None:
    put("a.csv", 'id,v\n1,"x\n"\n2,"\r\n\n\n"')
    run(flights(landing))
    assert rows(tmp_path) == [{"id": 1, "v": "x\n"}, {"id": 2, "v": "\r\n\n\n"}]


@pytest.mark.parametrize("text", ["id;code\n1;x\n", "id;code\n1;x,5\n", "id\tcode\n1\tx\n"])
def test_a_wrong_delimiter_is_named(landing, put, run, text) -> None:
    put("a.csv", text)
    with pytest.raises(DeltaError, match=r"a\.csv .*`delimiter`"):
        run(flights(landing))


def test_every_file_has_the_keys(landing, put, run) -> None:
    put("b.csv", "v\ny\nz\n")
    put("c.csv", "id,v\n5,q\n")
    with pytest.raises(DeltaError, match=r"b\.csv .*has the columns v, and not id"):
        run(flights(landing, mode="merge", keys=["id"]))


def test_rows_without_a_key_are_refused(landing, put, run) -> None:
    put("a.json", '{"v": "y"}\n{"v": "z"}\n{"id": 1, "v": "q"}\n')
    with pytest.raises(DeltaError, match="several rows in which id are null"):
        run(flights(landing, mode="merge", keys=["id"], columns={"id": "INT", "v": "STRING"}))


def test_a_location_has_one_identity_however_its_scheme_is_spelled() -> None:
    file = ObjectMeta("a.csv", 1, 1)
    stores = [open_store(f"{scheme}://bucket/in", {"region": "eu-1"}) for scheme in ("s3", "s3a")]
    uris = {LandingFiles(LandingZone(""), store, ()).uri(file) for store in stores}
    assert uris == {"s3://bucket/in/a.csv"}


def test_a_young_file_alone_is_left_too(landing, put) -> None:
    put("a.csv", "id\n1\n", at=int(dt.datetime.now(dt.UTC).timestamp()))
    assert not LandingZone(f"{landing}/a.csv", minimum_age_seconds=3600).files().files


@pytest.mark.parametrize(
    "options",
    [{"format": "xml"}, {"changed_files": "laod"}, {"delimiter": "||"}, {"mode": "ignore"}],
)
def test_unknown_choices_are_refused(landing, options) -> None:
    with pytest.raises(DeltaError, match="of flights is one"):
        flights(landing, **options)


def test_young_files_are_left_for_the_next_run(landing, put) -> None:
    put("a.csv", "id\n1\n")
    (landing / "b.csv").write_text("id\n2\n")
    found = LandingZone(str(landing), minimum_age_seconds=3600).files()
    assert [file.path for file in found.files] == ["a.csv"]


def test_the_sensor_runs_when_files_arrive(landing, put) -> None:
    asset = flights(landing)
    sensor = delta_files_sensor("arrivals", f"{landing}/**", target=[asset])
    context = dg.build_sensor_context()
    assert "No file matches" in str(sensor(context))
    put("a.csv", "id\n1\n")
    assert isinstance(sensor(context), dg.RunRequest)
    assert "1 file of " in str(sensor(context))
    put("b.csv", "id\n1\n")
    assert isinstance(sensor(context), dg.RunRequest)
