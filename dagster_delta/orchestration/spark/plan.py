"""The physical plan of a DataFrame, safe to show to everyone who sees a run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MAX_PLAN_CHARACTERS = 20_000
"""Plans of wide tables can be very long, and metadata is stored for every run."""

_HIDDEN = "***"
_NAME = (
    r"[\w.#-]*(?:passw(?:or)?d|pwd|secret|token|api[_-]?key|access[_-]?key|account[_-]?key|"
    r"credential|signature|\bsig)[\w.#-]*"
)
_NAMED = re.compile(rf"(?i)({_NAME}\s*(?:=|:\s|%3[ad])\s*)(\"[^\"]*\"|'[^']*'|[^\s,;&)\]}}>]+)")
_PUSHED = re.compile(rf"(?i)(\(`?{_NAME}`?,)[^)]*\)")
_IN_URL = re.compile(r"(?<=://)[^\s/@:]+:[^\s/@]+@")
_KEY = re.compile(r"\b(?:(?:AKIA|ASIA)[0-9A-Z]{16}|eyJ[\w-]+\.[\w-]+\.[\w-]*)")


def physical_plan(frame: DataFrame) -> str | None:
    """The plan as from `EXPLAIN FORMATTED`, without secrets and cut to `MAX_PLAN_CHARACTERS`; None
    if Spark does not return it. It runs no job.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        rows = frame.sparkSession.sql("EXPLAIN FORMATTED SELECT * FROM {frame}", frame=frame)
        plan = str(rows.collect()[0][0]).strip()
    except (Py4JError, PySparkException):
        return None
    # Cut later than needed, so that a secret before the limit is complete and is masked.
    shown = without_secrets(plan[: 2 * MAX_PLAN_CHARACTERS])[:MAX_PLAN_CHARACTERS]
    if len(plan) <= MAX_PLAN_CHARACTERS:
        return shown
    return f"{shown}\n… cut, of {len(plan):,} characters"


def without_secrets(text: str) -> str:
    """The text with everything that resembles a password, token or key replaced by asterisks."""
    text = _IN_URL.sub(f"{_HIDDEN}@", text)
    text = _PUSHED.sub(rf"\g<1>{_HIDDEN})", text)
    text = _NAMED.sub(rf"\g<1>{_HIDDEN}", text)
    return _KEY.sub(_HIDDEN, text)
