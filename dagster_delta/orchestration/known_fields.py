"""Configuration that refuses what it does not know, and says what took its place.

Dagster checks the fields of a resource that YAML or the Launchpad configures, and drops unknown
ones that Python gives: a typo, or an option of an earlier integration, would be lost in silence.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel

from dagster_delta.errors import InvalidArgument

__all__ = ["KnownFieldsOnly"]


class KnownFieldsOnly(BaseModel):
    """To be put before the Dagster class that a configuration extends.

    A field that is None or false asks for nothing, and may be unknown: objects of earlier
    integrations have those that nobody set.

    Raises:
        InvalidArgument: a field is given that the class does not have.
    """

    earlier_options: ClassVar[Mapping[str, str]] = {}
    """Option of an earlier integration to what to do instead."""

    def __init__(self, **data: Any) -> None:
        known = {field.alias or name for name, field in type(self).model_fields.items()}
        for name in sorted(data.keys() - known):
            if data[name] is None or data[name] is False:
                del data[name]
                continue
            raise _unknown_field(type(self).__name__, name, known, self.earlier_options)
        super().__init__(**data)


def _unknown_field(
    owner: str, name: str, known: set[str], earlier: Mapping[str, str]
) -> InvalidArgument:
    hint = earlier.get(name)
    if hint is None:
        close = difflib.get_close_matches(name, sorted(known), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(sorted(known))}"
    return InvalidArgument(f"{owner} has no option {name!r}: {hint}")
