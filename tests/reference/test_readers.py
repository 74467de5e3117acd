"""`docs/readers.md`, `docs/writers.md` and what plans say about other programs are as measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import deltalake
import polars as pl
import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.evolution.programs import PROGRAMS_FILE, load_programs
from docs import programs as pages
from tests.readers.answers import spell_programs
from tests.readers.programs import PROGRAMS
from tests.readers.questions import compare_rows
from tests.readers.tables import SAMPLES


def by_query(uri: str) -> pa.Table:
    query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(uri))
    return pa.table(query.execute("SELECT * FROM t").read_all())


READERS: dict[str, Callable[[str], pa.Table]] = {
    "deltalake": lambda uri: deltalake.DeltaTable(uri).to_pyarrow_table(),
    "deltalake QueryBuilder": by_query,
    "polars": lambda uri: pl.read_delta(uri).to_arrow(),
}


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "deletion vectors",
        "column mapping that came with a rename",
        "widened: int to bigint",
        "timestamp_ntz",
        "V2 checkpoint",
        "VACUUM protocol check",
        "clustering",
        "shallow clone",
        "default for existing rows",
    ],
)
def test_the_readers_of_the_development_read_what_was_measured(name: str, tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    SAMPLES[name].write(uri)
    expected = DeltaTable(uri).snapshot().scan().to_arrow()
    known = load_programs()
    for program, read in READERS.items():
        cells = [(cell.table, cell.program, cell.act, cell.verdict) for cell in known.cells]
        try:
            verdict = "wrong" if compare_rows(read(uri), expected) else "right"
        except Exception:  # noqa: BLE001  each reader has errors of its own
            verdict = "refused"
        measured = [str(cell[3]) for cell in cells if cell[:3] == (name, program, "rows")]
        assert [verdict] == (measured or ["right"]), program


def test_the_versions_are_those_that_the_command_asks() -> None:
    measured = {name: asked.version for name, asked in load_programs().programs.items()}
    pinned = {program.name: program.version for program in PROGRAMS if program.packages}
    assert {name: measured[name] for name in pinned} == pinned


def test_the_file_is_in_the_order_that_the_command_writes() -> None:
    assert PROGRAMS_FILE.read_text() == spell_programs(load_programs())


@pytest.mark.parametrize("page", [pages.READERS, pages.WRITERS], ids=lambda page: page.stem)
def test_the_pages_have_what_was_measured(page: Path) -> None:
    assert page.read_text() == pages.render(page), "run make docs"


def test_each_wrong_answer_is_explained_and_has_a_reason_to_stay() -> None:
    known = load_programs()
    used = {
        known.note_on(cell.table, cell.program, is_append=cell.act == "append")
        for cell in known.cells
        if cell.verdict == "wrong"
    }
    assert {(note.text, note.reason) for note in used} == {
        (note.text, note.reason) for note in known.notes
    }
    assert all(note.text and note.reason for note in known.notes)
