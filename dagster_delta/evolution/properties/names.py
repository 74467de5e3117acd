"""Which properties a caller may set on a table, and their spelling.

Spec: Change Metadata (configuration); Column Mapping (maxColumnId is internal).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from dagster_delta.errors import InvalidArgument
from dagster_delta.evolution.properties.required_protocol import FEATURE_PREFIX
from dagster_delta.protocol.features.column_change import COLUMN_CHANGE_KEY, COLUMN_CHANGE_SWITCH
from dagster_delta.protocol.known_properties import KNOWN_PROPERTIES, find_property
from dagster_delta.protocol.table_properties import CONSTRAINT_PREFIX, TableProperties

_SETTABLE = tuple(each.name for each in KNOWN_PROPERTIES if each.can_be_set)

COMMENT_KEY = "comment"
"""The property by which Spark SQL sets the description of a table."""

_RESERVED = {
    "provider": "the table is a Delta table",
    "location": "the table lies where it was opened",
    "external": "tables are opened by their location here",
    "is_managed_location": "tables are opened by their location here",
    "owner": "tables have no owner here",
}
"""Properties that Spark SQL reserves; they are not table properties."""

_SPELLINGS = {each.lower(): each for each in _SETTABLE}


def normalize_properties(properties: Mapping[str, object]) -> dict[str, str]:
    """The properties as text, known keys in their canonical spelling.

    Names outside `delta.` that this library does not know are user properties and stay unchanged;
    booleans and numbers are spelled as in other engines.
    """
    if any(key.lower() == COLUMN_CHANGE_KEY.lower() for key in properties):
        raise InvalidArgument(
            f"{COLUMN_CHANGE_KEY} marks a column change in progress and cannot be set; begin one "
            "by change_column"
        )
    normal = {spell_property(key): _text(key, value) for key, value in properties.items()}
    TableProperties.parse(normal).validate()
    return normal


def spell_property(key: str, *, is_known: bool = False) -> str:
    """The name of a property in its canonical spelling. `is_known` accepts an unknown `delta.`
    name, for example because the table already has it.
    """
    lowered = key.lower()
    if lowered == COLUMN_CHANGE_SWITCH.lower():
        return COLUMN_CHANGE_SWITCH
    if not lowered.startswith("delta."):
        if lowered in _RESERVED and not is_known:
            raise InvalidArgument(
                f"{key} cannot be set as a property: {_RESERVED[lowered]}, and Spark reserves "
                "the name; leave it out"
            )
        return COMMENT_KEY if lowered == COMMENT_KEY else key
    for prefix in (CONSTRAINT_PREFIX, FEATURE_PREFIX):
        if lowered.startswith(prefix):
            return prefix + key[len(prefix) :]
    known = find_property(key)
    if known is not None and known.treatment == "internal":
        raise InvalidArgument(
            f"the table property {key} is maintained by writers and cannot be set; omit it"
        )
    if known is not None and not known.can_be_set and not is_known:
        raise InvalidArgument(
            f"the table property {key} cannot be set by this library ({known.what}); leave it out"
        )
    spelling = known.name if known is not None else None
    if spelling is None and not is_known:
        close = difflib.get_close_matches(lowered, _SPELLINGS, n=1)
        hint = f"did you mean {_SPELLINGS[close[0]]}? The" if close else "the"
        raise InvalidArgument(
            f"there is no table property {key}; {hint} properties are {', '.join(_SETTABLE)}, "
            f"{CONSTRAINT_PREFIX}<name> and {FEATURE_PREFIX}<name>"
        )
    return spelling or key


def _text(key: str, value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case int():
            return str(value)
        case _:
            raise InvalidArgument(
                f"the table property {key} is text, a number or a boolean, not {value!r}"
            )
