"""What the programs said, as the file that the package ships: one line per cell."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

import msgspec

from dagster_delta.evolution.programs import (
    PROGRAMS_FILE,
    Act,
    Cell,
    Measured,
    Programs,
    Verdict,
)
from tests.readers.notes import INSTEAD, NOTES
from tests.readers.questions import Question
from tests.readers.tables import SAMPLES


def act_of(question: Question) -> Act:
    """What a user does who asks this."""
    if question.kind in ("append", "changes", "count"):
        return "append" if question.kind == "append" else question.kind
    if question.timestamp or question.version is not None:
        return "time travel"
    return "filter" if question.filter else "rows"


def summarize_answers(
    program: str, table: str, answers: Iterable[tuple[Question, str]]
) -> Iterator[Cell]:
    """One cell for each act whose answers are not all right, with the first that is worst."""
    worst: dict[Act, tuple[str, str]] = {}
    # What is not offered counts where nothing of its kind is.
    order = ("not offered", "right", "refused", "ended", "wrong")
    for question, said in answers:
        verdict, _, detail = said.partition(": ")
        act = act_of(question)
        if act not in worst or order.index(verdict) > order.index(worst[act][0]):
            at = f"{question.name.removeprefix('filter: ')}: " if act == "filter" else ""
            worst[act] = (verdict, at + detail)
    refused = worst.get("rows", ("", ""))[0] == "refused"
    for act, (verdict, detail) in worst.items():
        if verdict == "right":
            continue
        # Who refuses the rows refuses the rest.
        if refused and verdict == "refused" and act not in ("rows", "append"):
            continue
        named = cast("Verdict", verdict)
        yield Cell(table=table, program=program, act=act, verdict=named, detail=detail[:200])


def record_answers(
    program: str, version: str, tables: Sequence[str], cells: Sequence[Cell]
) -> None:
    """Write the cells of a program in place of those that the file has of these tables."""
    known = (
        msgspec.json.decode(PROGRAMS_FILE.read_bytes(), type=Programs)
        if PROGRAMS_FILE.is_file()
        else Programs(programs={}, cells=())
    )
    kept = [cell for cell in known.cells if cell.program != program or cell.table not in tables]
    today = dt.datetime.now(dt.UTC).date()
    programs = known.programs | {program: Measured(version=version, date=today)}
    PROGRAMS_FILE.write_text(spell_programs(Programs(programs=programs, cells=(*kept, *cells))))


def spell_programs(known: Programs) -> str:
    """JSON, with one line for each program, note and cell, in the order of the tables."""
    order = list(SAMPLES)
    cells = sorted(
        (cell for cell in known.cells if cell.table in order),
        key=lambda cell: (order.index(cell.table), cell.program, cell.act),
    )
    parts = {
        "programs": _spell_pairs(dict(sorted(known.programs.items()))),
        "tables": _spell_list(order),
        "appended": _spell_list(name for name in order if SAMPLES[name].new_rows is not None),
        "instead": _spell_pairs(INSTEAD),
        "notes": _spell_list(NOTES),
        "cells": _spell_list(cells),
    }
    return "{\n" + ",\n".join(f'"{key}": {text}' for key, text in parts.items()) + "\n}\n"


def _spell_list(values: Iterable[object]) -> str:
    lines = (msgspec.json.encode(value).decode() for value in values)
    return "[\n" + ",\n".join(lines) + "\n]"


def _spell_pairs(values: Mapping[str, object]) -> str:
    lines = (
        f"{msgspec.json.encode(key).decode()}: {msgspec.json.encode(value).decode()}"
        for key, value in values.items()
    )
    return "{\n" + ",\n".join(lines) + "\n}"
