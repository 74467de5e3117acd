"""Common mistakes in Spark SQL: errors say what to write instead."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.errors import InvalidArgument, SchemaMismatch


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> DeltaTable:
    table = DeltaTable(str(tmp_path_factory.mktemp("lake") / "t"), must_exist=False)
    table.append(pa.table({"id": [1], "name": ["a; b"], "day": [dt.date(2024, 5, 1)]}))
    return table


@pytest.mark.parametrize(
    ("where", "hint"),
    [
        ("name = 'a", "the quote ' is not closed"),
        ("`id = 1", "the quote ` is not closed"),
        ("CAST(id AS strng) = 'a'", "strng is not a type of Spark SQL"),
        ("id = 'x'", "\"id = 'x'\" fails on a value: a text is not in the form of a bigint"),
    ],
)
def test_a_condition_in_another_notation_says_what_to_write(
    table: DeltaTable, where: str, hint: str
) -> None:
    with pytest.raises((InvalidArgument, SchemaMismatch)) as caught:
        table.snapshot().scan(where=where).to_arrow()
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("where", "hint"),
    [
        ("nme = 'a'", "; did you mean name?"),
        ("df.ID = 1", "; did you mean id?"),
    ],
)
def test_a_column_that_does_not_exist_says_what_may_be_meant(
    table: DeltaTable, where: str, hint: str
) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        table.snapshot().scan(where=where)
    assert caught.value.message.endswith(hint)


def test_arguments_of_other_types_are_refused_by_name(table: DeltaTable) -> None:
    scan = table.snapshot().scan
    with pytest.raises(InvalidArgument, match=r"columns is a list of names: write \['id'\]"):
        scan(columns="id")
    with pytest.raises(InvalidArgument, match=r"target_file_size .* must be > 0"):
        table.optimize(target_file_size=0)
    for retention in ("7 days", -1, float("nan"), float("inf"), dt.timedelta(7)):
        with pytest.raises(InvalidArgument, match="the retention is a number of hours from 0 on"):
            table.vacuum(retention)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="the retention is a number of hours from 0 on"):
            table.clean_log(retention)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"did you mean delta\.appendOnly\?$"):
        table.set_properties({"delta.appendOnli": True})
