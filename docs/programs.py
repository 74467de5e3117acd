"""Write the tables of `docs/readers.md` and `docs/writers.md`, which follow from what was measured.

`python -m docs.programs` writes them, between the markers; the rest is written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from dagster_delta.evolution.programs import Cell, Programs, load_programs

HERE = Path(__file__).parent
READERS, WRITERS = HERE / "readers.md", HERE / "writers.md"
_KINDS = ("widened: ", "partitioned by ")
_BLOCK = re.compile(r"(?ms)^<!-- measured -->$.*?^<!-- end -->$")


def render(page: Path) -> str:
    """The whole page."""
    lines = _lines(load_programs(), appends=page == WRITERS)
    block = "\n".join(("<!-- measured -->", "", *lines, "", "<!-- end -->"))
    return _BLOCK.sub(lambda _: block, page.read_text())


def _lines(known: Programs, *, appends: bool) -> Iterator[str]:
    cells = [cell for cell in known.cells if (cell.act == "append") == appends]
    programs = [
        name
        for name in known.programs
        if not appends or any(cell.program == name for cell in cells)
    ]
    asked = (f"{known.version_of(name)} ({known.programs[name].date})" for name in programs)
    yield f"Asked: {', '.join(asked)}."
    yield ""
    rows = dict(_rows(known, cells, programs))
    right = [name for name in known.tables if name in rows and set(rows[name]) == {"yes"}]
    does = "store the right rows in" if appends else "read"
    yield f"All of them {does}: {', '.join(right)}."
    yield ""
    yield f"| Table | {' | '.join(programs)} |"
    yield f"|---|{'---|' * len(programs)}"
    for names, row in _grouped(rows):
        yield f"| {names} | {' | '.join(row)} |"
    yield ""
    yield "### Wrong without an error"
    yield ""
    yield from _explained(known, cells, appends=appends)
    instead = [f"- {table.replace('*', '…')}: {text}." for table, text in known.instead.items()]
    if not appends:
        yield from ("", "### What to do instead", "", *instead)


def _explained(known: Programs, cells: list[Cell], *, appends: bool) -> Iterator[str]:
    """What is wrong, by its explanation: programs and tables."""
    found: dict[tuple[str, str], tuple[dict[str, None], dict[str, None]]] = {}
    for cell in cells:
        if cell.verdict == "wrong":
            note = known.note_on(cell.table, cell.program, is_append=appends)
            programs, tables = found.setdefault((note.text, note.reason), ({}, {}))
            programs[cell.program] = tables[cell.table] = None
    for (text, reason), (programs, tables) in sorted(found.items(), key=lambda item: [*item[1][0]]):
        yield f"- **{', '.join(programs)}**: {text}. Seen with {'; '.join(tables)}."
        yield f"  Why it stays: {reason}."


def _rows(
    known: Programs, cells: list[Cell], programs: list[str]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    appends = cells[0].act == "append"
    for table in known.tables:
        if appends and table not in known.appended:
            continue
        yield (
            table,
            tuple(
                _verdict([c for c in cells if (c.table, c.program) == (table, name)])
                for name in programs
            ),
        )


def _verdict(cells: list[Cell]) -> str:
    """What a program does with a table, in a few words."""
    if any(cell.act in ("rows", "append") and cell.verdict != "wrong" for cell in cells):
        return "no"
    if wrong := [cell.act for cell in cells if cell.verdict == "wrong"]:
        return "**wrong**" if {"rows", "append"} & {*wrong} else f"**wrong**: {', '.join(wrong)}"
    if refused := [cell.act for cell in cells]:
        return f"no {', '.join(refused)}"
    return "yes"


def _grouped(rows: dict[str, tuple[str, ...]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Rows that are not right everywhere; tables of one kind with equal rows are one row."""
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for table, row in rows.items():
        kind = next((kind for kind in _KINDS if table.startswith(kind)), "")
        groups.setdefault((kind or table, row), []).append(table.removeprefix(kind))
    for (name, row), tables in groups.items():
        if set(row) != {"yes"}:
            yield (name + ", ".join(tables) if name in _KINDS else name), row


def main() -> None:
    """Write both pages."""
    for page in (READERS, WRITERS):
        page.write_text(render(page))


if __name__ == "__main__":
    main()
