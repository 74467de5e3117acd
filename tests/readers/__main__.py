"""Ask the programs, and write what they said into `dagster_delta/evolution/programs.json`.

python -m tests.readers                          # all programs, all tables: half an hour
python -m tests.readers --programs DuckDB,chdb   # what is asked of others stays as it is
python -m tests.readers --tables "NaN and infinity;no rows" --show

A new release of a program: change its pin in `programs.py`, run it, review the difference, and make
the pages again by `make docs`.
"""

from __future__ import annotations

import argparse
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from dagster_delta import DeltaTable
from dagster_delta.errors import ConstraintViolation, DeltaError
from dagster_delta.evolution.programs import Cell
from tests.readers.answers import record_answers, summarize_answers
from tests.readers.asking import read_rows, write_rows
from tests.readers.programs import PROGRAMS, Program, ask, delta_spark_version
from tests.readers.questions import Question, compare_rows
from tests.readers.tables import ALL, SAMPLES, write_samples

_SIMPLEST = "plain"
_RANDOM = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|0x[0-9a-f]+")


def main() -> None:
    """Parse the command line, and ask."""
    parser = argparse.ArgumentParser(prog="python -m tests.readers")
    parser.add_argument("--programs", default="", help="names, separated by commas; default: all")
    parser.add_argument("--tables", default="", help="names, separated by semicolons; default: all")
    parser.add_argument("--show", action="store_true", help="print, and leave the file as it is")
    options = parser.parse_args()
    wanted = [name for name in options.programs.split(",") if name]
    programs = [program for program in PROGRAMS if not wanted or program.name in wanted]
    tables = [name for name in options.tables.split(";") if name] or list(SAMPLES)
    with tempfile.TemporaryDirectory() as directory:
        for program in programs:
            cells = _measure(program, tables, Path(directory) / program.name.replace(" ", "-"))
            print(program.name, program.version, *map(str, cells), sep="\n  ")
            if not options.show:
                version = program.version or delta_spark_version()
                record_answers(program.name, version, tables, cells)


def _measure(program: Program, tables: Sequence[str], directory: Path) -> list[Cell]:
    """Where the program does not read the right rows, or appends others."""
    places = write_samples(directory / "read", list(tables))
    answers = directory / "answers"
    shutil.rmtree(answers, ignore_errors=True)
    answers.mkdir()
    asked = [(name, question) for name in tables for question in SAMPLES[name].all_questions()]
    messages = [
        _message(question, places[name], answers / f"{n}.arrow", n)
        for n, (name, question) in enumerate(asked)
    ]
    found: list[Cell] = []
    said_by_table: dict[str, list[tuple[Question, str]]] = {name: [] for name in tables}
    for (name, question), said in zip(asked, ask(program, messages), strict=True):
        rows = answers / f"{said['id']}.arrow"
        said_by_table[name].append((question, _judge(said, rows, places[name], question)))
    for name, verdicts in said_by_table.items():
        found += summarize_answers(program.name, name, verdicts)
    if program.writes:
        append = Question(name="append", kind="append")
        for name, verdict in _measure_appends(program, tables, directory):
            found += summarize_answers(program.name, name, [(append, verdict)])
    return found


def _message(question: Question, uri: str, rows: Path, number: int) -> dict[str, Any]:
    return {**msgspec.to_builtins(question), "uri": uri, "rows": str(rows), "id": number}


def _judge(said: dict[str, Any], rows: Path, uri: str, question: Question) -> str:
    """`right`, or a word and what it means: `wrong: …`, `refused: …`, `not offered: …`, `ended: …`."""
    if said["status"] != "answered":
        return f"{said['status']}: {_without_places(said['detail'], uri)}".rstrip(": ")
    difference = compare_rows(_plain_columns(read_rows(str(rows))), expected_rows(uri, question))
    return f"wrong: {difference}" if difference else "right"


def _without_places(text: str, uri: str) -> str:
    text = text.replace(uri, "<table>").replace(str(Path(uri).parent), "<directory>")
    return _RANDOM.sub("…", text)


def _plain_columns(found: pa.Table) -> pa.Table:
    """Without the columns that a change data feed has beside those of the table."""
    return found.drop_columns([name for name in found.column_names if name == "_commit_timestamp"])


def expected_rows(uri: str, question: Question) -> pa.Table:
    """What this library answers."""
    table = DeltaTable(uri)
    condition = question.filter.spell() if question.filter else None
    if question.kind == "changes":
        changes = table.changes(question.version)
        return _plain_columns(changes.to_arrow())
    snapshot = table.snapshot(version=question.version, timestamp=question.timestamp)
    scan = snapshot.scan(columns=question.columns, where=condition)
    if question.kind == "count":
        return pa.table({"n": [scan.to_arrow().num_rows]})
    return scan.to_arrow()


def _measure_appends(
    program: Program, tables: Sequence[str], directory: Path
) -> Iterator[tuple[str, str]]:
    """What the rows are after the program has appended some."""
    asked = [name for name in tables if SAMPLES[name].new_rows is not None]
    wanted = list(dict.fromkeys([_SIMPLEST, *asked]))
    places = write_samples(directory / "written", wanted)
    messages = []
    for number, name in enumerate(wanted):
        rows = SAMPLES[name].new_rows
        assert rows is not None
        new_rows = directory / f"new-{number}.arrow"
        write_rows(rows, new_rows)
        question = Question(name="append", kind="append")
        message = _message(question, places[name], directory / "none.arrow", number)
        messages.append({**message, "new_rows": str(new_rows)})
    said = dict(zip(wanted, ask(program, messages), strict=True))
    judged = {name: _judge_answer(said[name], places[name], name) for name in wanted}
    stored = {
        name: places[name]
        for name in wanted
        if judged[name] == "right" and said[name]["status"] == "answered"
    }
    judged |= _find_misread(stored, directory)
    yield from ((name, judged[name]) for name in asked)


def _judge_answer(said: dict[str, Any], uri: str, name: str) -> str:
    own = _own_rows(f"{uri}.own", name)
    if said["status"] == "answered":
        return _judge_append(uri, own)
    if own is None and said["status"] == "refused":
        return "right"
    return f"{said['status']}: {_without_places(said['detail'], uri)}".rstrip(": ")


def _find_misread(places: dict[str, str], directory: Path) -> dict[str, str]:
    """Why programs read a table after an append of this library, and not after the other one."""
    found: dict[str, str] = {}
    # The kernel stands for Spark, which takes minutes for so many tables.
    for reader in (program for program in PROGRAMS if program.name != "delta-spark"):
        verdicts = _read_whole(reader, places, directory)
        failed = {name: said for name, said in verdicts.items() if said != "right"}
        own = {name: f"{places[name]}.own" for name in failed}
        misread = [n for n, said in _read_whole(reader, own, directory).items() if said == "right"]
        # Who reads no file of the writer is named once.
        for name in [_SIMPLEST] if _SIMPLEST in misread else misread:
            found.setdefault(name, f"wrong: {reader.name} refuses it since: {failed[name]}")
    return found


def _read_whole(reader: Program, places: dict[str, str], directory: Path) -> dict[str, str]:
    answers = {name: directory / f"after-{n}.arrow" for n, name in enumerate(places)}
    messages = [
        _message(ALL, places[name], answer, n) for n, (name, answer) in enumerate(answers.items())
    ]
    return {
        name: _judge(said, answers[name], places[name], ALL)
        for name, said in zip(places, ask(reader, messages), strict=True)
    }


def _own_rows(uri: str, name: str) -> pa.Table | None:
    """The rows after an append of this library; None if it refuses the new rows."""
    SAMPLES[name].write(uri)
    try:
        DeltaTable(uri).append(SAMPLES[name].new_rows)
    except ConstraintViolation:
        return None
    return DeltaTable(uri).snapshot().scan().to_arrow()


def _judge_append(uri: str, own: pa.Table | None) -> str:
    """The rows after an append, against those that this library would have stored."""
    if own is None:
        return "wrong: it stored what this library refuses"
    try:
        after = DeltaTable(uri).snapshot().scan().to_arrow()
    except DeltaError as error:
        return f"wrong: the table is refused afterwards: {type(error).__name__}: {error.message}"
    difference = compare_rows(after, own)
    return f"wrong: {difference}" if difference else "right"


if __name__ == "__main__":
    main()
