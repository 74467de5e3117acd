"""A few rows of a table as a table in the Dagster UI, with masked columns."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from dagster import MetadataValue, TableMetadataValue, TableRecord

from dagster_delta.errors import DeltaError, InvalidArgument
from dagster_delta.protocol.schema import StructType
from dagster_delta.protocol.values.arrow_values import python_rows

Row: TypeAlias = Mapping[str, Any]
"""Values by column."""

MAX_COLUMNS = 50
"""Maximum number of columns shown."""

_MAX_CHARACTERS = 100
_MASK = "•••"
_EXACT_IN_A_BROWSER = 2**53


def check_masked_columns(masked: Collection[str], schema: StructType) -> None:
    """Refuse a masked column that does not exist: a misspelled name would show its values."""
    names = {name.casefold() for name in schema.names}
    unknown = [name for name in masked if name.casefold() not in names]
    if unknown:
        raise InvalidArgument(
            f"masked_columns names {', '.join(unknown)}, and the table has no such column, so that "
            f"no rows are shown; its columns are {', '.join(schema.names)}",
            column=unknown[0],
        )


@contextmanager
def hidden_examples(masked: Collection[str]) -> Iterator[None]:
    """Raises errors without their examples of rows if columns are masked: they are text, in which
    single columns cannot be masked. Errors of other libraries behind ours are left out too.
    """
    try:
        yield
    except Exception as error:
        if masked:
            _hide_examples(error)
        raise


def _hide_examples(error: BaseException) -> None:
    found: BaseException | None = error
    seen: set[int] = set()
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        inner = found.__cause__ or found.__context__
        if isinstance(found, DeltaError):
            if found.examples:
                found.examples = ("(not shown, as the asset has masked_columns)",)
            if not isinstance(inner, DeltaError):
                # The messages of other libraries name values too.
                found.__cause__ = found.__context__ = inner = None
        found = inner


def first_rows(batches: Iterable[Any], count: int) -> list[Row]:
    """The first rows of record batches, at most `count`."""
    found: list[Row] = []
    for batch in batches:
        found += python_rows(batch.slice(0, count - len(found)))
        if len(found) >= count:
            break
    return found


def row_table(rows: Sequence[Row], masked: Collection[str]) -> TableMetadataValue:
    """Rows with the same columns, at least one, as a value for the UI: at most `MAX_COLUMNS`
    columns, with short texts. Masked values are hidden; nulls remain.
    """
    hidden = {name.casefold() for name in masked}
    names = list(rows[0])[:MAX_COLUMNS]
    records = [
        TableRecord(
            {name: shown_value(row[name], masked=name.casefold() in hidden) for name in names}
        )
        for row in rows
    ]
    return MetadataValue.table(records)


def shown_value(value: Any, *, masked: bool = False) -> Any:  # noqa: ANN401
    """The value as JSON that a browser shows exactly, or as a short text; hidden if masked."""
    if masked and value is not None:
        return _MASK
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) <= _EXACT_IN_A_BROWSER:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, bytes):
        text = value.hex()
    elif isinstance(value, dict | list | tuple):
        text = json.dumps(value, default=str, ensure_ascii=False)
    else:
        text = str(value)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}…"
