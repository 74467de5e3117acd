"""Hints for texts that are no Spark SQL: notations of Python, pandas and other databases."""

from __future__ import annotations

import difflib
import re

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`")
_NAMES_AND_TEXTS = re.compile(r"'[^']*'|`[^`]*`")

_QUALIFIED = re.compile(r'"\s*\.\s*\w|\.\s*"')
"""A name in double quotes beside the dot of a qualified one."""

_HINTS = (
    (r"\A\s*where\b", "Leave WHERE out: only the condition is given."),
    (
        r"\A\s*(?:select|delete|update|merge|with)\b",
        "Give only the condition or the value, not a statement.",
    ),
    (r";", "Leave the semicolon out."),
    (r"&&", "Write AND instead of &&."),
    (r"\|\|", "Write OR instead of ||, which joins texts."),
    (r"\bin\s*\[", "Write a list in parentheses: IN (1, 2)."),
    (r"\bNone\b", "Write NULL instead of None: x IS NULL, x IS NOT NULL."),
    (r"\b\d{4}-\d{1,2}-\d{1,2}\b", "Write a date in quotes: DATE '2024-05-01'."),
    (r"~", "Write x RLIKE 'pattern' for regular expressions."),
    (
        r"[{@]|(?<!:):\w",
        "There are no parameters: put the value into the text, between single quotes if it is one.",
    ),
)


def hint_for(sql: str) -> str:
    """What to write instead, as a line of its own below an error; empty if nothing is known."""
    # A quote that is not closed hides nothing.
    bare = _QUOTED.sub("''", sql)
    found = [hint for pattern, hint in _HINTS if re.search(pattern, bare, re.IGNORECASE)]
    if _QUALIFIED.search(_NAMES_AND_TEXTS.sub("''", sql)):
        found.append("Write names in backticks: `t`.`id`. Double quotes delimit texts.")
    return "".join(f"\n{hint}" for hint in found)


def hint_for_column(parts: tuple[str, ...], names: tuple[str, ...]) -> str:
    """What to write instead of a column that does not exist, as the end of an error.

    Args:
        parts: its name, in parts that were separated by dots.
        names: names of the columns that exist.
    """
    known = {name.casefold(): name for name in names}
    alias = {"target": "t", "source": "s"}.get(parts[0].casefold())
    if len(parts) > 1 and alias in known:
        return f"; write {'.'.join((alias, *parts[1:]))}"
    if len(parts) > 1 and parts[1].casefold() in known:
        return f"; write {'.'.join((known[parts[1].casefold()], *parts[2:]))}"
    if len(parts) == 1 and (close := difflib.get_close_matches(parts[0].casefold(), known, n=1)):
        return f"; did you mean {known[close[0]]}?"
    if len(parts) == 1 and parts[0] != "None":
        return f"; a text is written in single quotes: '{parts[0]}'"
    return ""
