"""Why there is no table at a location of the local file system."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

_LOG = "_delta_log"
_MAX_ENTRIES = 1000
_MAX_NAMED = 3


def hint_for_missing(root: str) -> str:
    """What is at a location that is no table, as the end of an error; empty if nothing is known."""
    path = Path(root)
    try:
        return _hint(path)
    except OSError:
        return ""


def _hint(path: Path) -> str:
    if path.is_file():
        return "; this is a file, and a table is a directory"
    around = next((parent for parent in path.parents if (parent / _LOG).is_dir()), None)
    if around is not None:
        return f"; this location is inside the table {around}"
    if not path.is_dir():
        return "; this directory does not exist"
    entries = list(islice(path.iterdir(), _MAX_ENTRIES))
    tables = sorted(entry.name for entry in entries if (entry / _LOG).is_dir())
    if tables:
        more = ", …" if len(tables) > _MAX_NAMED else ""
        return f"; there are tables in this directory: {', '.join(tables[:_MAX_NAMED])}{more}"
    if any(entry.suffix == ".parquet" for entry in entries):
        return (
            "; this directory holds Parquet files without a log: DeltaTable.convert makes a table "
            "of them"
        )
    return ""
