"""Ask the programs, and write what they said into `answers.json`.

python -m tests.readers                          # all programs, all tables: half an hour
python -m tests.readers --programs DuckDB,chdb   # what is asked of others stays as it is
python -m tests.readers --tables "NaN and infinity" --show
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from dagster_delta import DeltaTable
from tests.readers.asking import read_rows, write_rows
from tests.readers.programs import PROGRAMS, Program, ask
from tests.readers.questions import Question, compare_rows
from tests.readers.tables import SAMPLES, write_samples

ANSWERS = Path(__file__).with_name("answers.json")
_RANDOM = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|0x[0-9a-f]+")
READS, WRITES = "reads", "writes"


def main() -> None:
    """Parse the command line, and ask."""
    parser = argparse.ArgumentParser(prog="python -m tests.readers")
    parser.add_argument("--programs", default="", help="names, separated by commas; default: all")
    parser.add_argument("--tables", default="", help="names, separated by commas; default: all")
    parser.add_argument("--show", action="store_true", help="print, and leave the file as it is")
    options = parser.parse_args()
    wanted = [name for name in options.programs.split(",") if name]
    programs = [program for program in PROGRAMS if not wanted or program.name in wanted]
    tables = [name for name in options.tables.split(",") if name] or list(SAMPLES)
    known = json.loads(ANSWERS.read_text()) if ANSWERS.is_file() else {}
    with tempfile.TemporaryDirectory() as directory:
        for program in programs:
            found = _measure(program, tables, Path(directory))
            _print(program, found)
            known[program.name] = {
                "version": program.version or _own_version(),
                "date": dt.datetime.now(dt.UTC).date().isoformat(),
                "tables": known.get(program.name, {}).get("tables", {}) | found,
            }
            if not options.show:
                ANSWERS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def _own_version() -> str:
    import importlib.metadata

    return importlib.metadata.version("delta-spark")


def _measure(program: Program, tables: Sequence[str], directory: Path) -> dict[str, Any]:
    """By table: what the program reads, and what its append does to the rows."""
    places = write_samples(directory / "read", list(tables))
    answers = directory / "answers"
    shutil.rmtree(answers, ignore_errors=True)
    answers.mkdir()
    asked = [(name, question) for name in tables for question in SAMPLES[name].all_questions()]
    messages = [
        _message(question, places[name], answers / f"{n}.arrow", n)
        for n, (name, question) in enumerate(asked)
    ]
    found: dict[str, Any] = {name: {READS: {}} for name in tables}
    for (name, question), said in zip(asked, ask(program, messages), strict=True):
        rows = answers / f"{said['id']}.arrow"
        found[name][READS][question.name] = _judge(said, rows, places[name], question)
    for name, verdict in _measure_appends(program, tables, directory):
        found[name][WRITES] = verdict
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
    """What the rows are after the program has appended some; delta-spark reads them, too."""
    wanted = [name for name in tables if SAMPLES[name].new_rows is not None]
    places = write_samples(directory / "written", wanted)
    messages = []
    before = {}
    for number, name in enumerate(wanted):
        rows = SAMPLES[name].new_rows
        assert rows is not None
        before[name] = DeltaTable(places[name]).snapshot().scan().to_arrow()
        new_rows = directory / f"new-{number}.arrow"
        write_rows(rows, new_rows)
        question = Question(name="append", kind="append")
        message = _message(question, places[name], directory / "none.arrow", number)
        messages.append({**message, "new_rows": str(new_rows)})
    for name, said in zip(wanted, ask(program, messages), strict=True):
        if said["status"] != "answered":
            detail = _without_places(said["detail"], places[name])
            yield name, f"{said['status']}: {detail}".rstrip(": ")
        else:
            yield name, _judge_append(places[name], before[name], name)


def _judge_append(uri: str, before: pa.Table, name: str) -> str:
    """The rows after an append, against those that this library would have stored."""
    own = f"{uri}.own"
    SAMPLES[name].write(own)
    try:
        DeltaTable(own).append(SAMPLES[name].new_rows)
    except Exception as error:
        return f"wrong: it stored what this library refuses ({type(error).__name__})"
    try:
        after = DeltaTable(uri).snapshot().scan().to_arrow()
    except Exception as error:
        return f"wrong: the table is refused afterwards: {type(error).__name__}: {error}"[:300]
    difference = compare_rows(after, DeltaTable(own).snapshot().scan().to_arrow())
    return f"wrong: {difference}" if difference else "right"


def _print(program: Program, found: dict[str, Any]) -> None:
    print(f"{program.name} {program.version}")
    for name, verdicts in found.items():
        notes = [
            f"    {question}: {verdict}"
            for question, verdict in verdicts[READS].items()
            if verdict != "right"
        ]
        if verdicts.get(WRITES, "right") != "right":
            notes.append(f"    append: {verdicts[WRITES]}")
        if notes:
            print(f"  {name}", *notes, sep="\n")


if __name__ == "__main__":
    main()
