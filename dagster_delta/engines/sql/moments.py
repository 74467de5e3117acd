"""The time of a statement as a constant: within one write the clock stands still, as in Spark."""

from __future__ import annotations

import datetime as dt
import re

__all__ = ["at_moment"]

_CALL = re.compile(r"\s*\(*\s*([a-z_]+)\s*(?:\(\s*\))?[\s)]*", re.IGNORECASE)


def at_moment(sql: str, moment: dt.datetime) -> str:
    """The constant that a default which asks for the time stands for; other text as it is.

    Args:
        sql: Spark SQL of a default, `current_timestamp()` say.
        moment: when the statement began, with a time zone. The embedded session is in UTC.
    """
    match = _CALL.fullmatch(sql)
    if match is None or sql.count("(") != sql.count(")"):
        return sql
    in_utc = moment.astimezone(dt.UTC).replace(tzinfo=None)
    match match[1].lower():
        case "current_timestamp" | "now":
            return f"TIMESTAMP '{in_utc.isoformat(sep=' ')}+00:00'"
        case "localtimestamp":
            return f"TIMESTAMP_NTZ '{in_utc.isoformat(sep=' ')}'"
        case "current_date" | "curdate":
            return f"DATE '{in_utc.date().isoformat()}'"
    return sql
