"""Configuration that refuses what it does not know, and says what took its place.

Dagster checks the fields of a resource that YAML or the Launchpad configures, and drops unknown
ones that Python gives: a typo, or an option of an earlier integration, would be lost in silence.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from enum import Enum
from typing import Any, ClassVar, Literal, get_args, get_origin

from pydantic import BaseModel

from dagster_delta.errors import InvalidArgument

__all__ = ["KnownFieldsOnly"]


class KnownFieldsOnly(BaseModel):
    """To be put before the Dagster class that a configuration extends.

    A class whose predecessors in other integrations have more fields may forgive those that are
    None or false, as nobody has set them: see `forgives_unset`.

    Raises:
        InvalidArgument: a field is given that the class does not have.
    """

    earlier_options: ClassVar[Mapping[str, str]] = {}
    """Option of an earlier integration to what to do instead."""
    earlier_values: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    """By option, value of an earlier integration to what to do instead."""
    forgives_unset: ClassVar[bool] = False
    """Whether unknown fields that are None or false are left out."""

    def __init__(self, **data: Any) -> None:
        known = {field.alias or name for name, field in type(self).model_fields.items()}
        for name in sorted(data.keys() - known):
            if self.forgives_unset and (data[name] is None or data[name] is False):
                del data[name]
                continue
            raise _unknown_field(type(self).__name__, name, known, self.earlier_options)
        for name, value in data.items():
            _check_kind(type(self), name, value)
            _check_choice(type(self), name, value, self.earlier_values.get(name, {}))
        super().__init__(**data)


def _check_kind(owner: type[BaseModel], name: str, value: object) -> None:
    """Refuse a plain mapping for a field that takes one of several classes: Dagster wants to be
    told which, and fails on any other mapping with an error that names nothing.
    """
    field = owner.model_fields.get(name)
    if field is None or not field.discriminator or not isinstance(value, Mapping):
        return
    if len(value) == 1 and isinstance(next(iter(value.values())), Mapping):
        return
    classes = ", ".join(each.__name__ for each in get_args(field.annotation))
    # No values: some are secrets.
    raise InvalidArgument(
        f"{name} of {owner.__name__} is a plain mapping, which does not say of what kind: pass one "
        f"of {classes} instead"
    )


def _check_choice(
    owner: type[BaseModel], name: str, value: object, earlier: Mapping[str, str]
) -> None:
    """Refuse a value that is none of those of a choice, in words that say what to do."""
    field = owner.model_fields.get(name)
    if field is None:
        return
    allowed = _choices(field.annotation)
    text = value.value if isinstance(value, Enum) else value
    # Expressions such as EnvVar are strings of a class of their own, for Dagster to resolve.
    if not allowed or text in allowed or type(text) not in (str, int, float, bool, type(None)):
        return
    hint = f": {earlier[text]}" if isinstance(text, str) and text in earlier else ""
    if text is None:
        hint = f": leave it out for {field.default}"
    raise InvalidArgument(
        f"{name} of {owner.__name__} is {text!r}, and takes one of {', '.join(allowed)}{hint}"
    )


def _choices(annotation: Any) -> tuple[str, ...]:
    """The values of a Literal; none of another type."""
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _unknown_field(
    owner: str, name: str, known: set[str], earlier: Mapping[str, str]
) -> InvalidArgument:
    hint = earlier.get(name)
    if hint is None:
        close = difflib.get_close_matches(name, sorted(known), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(sorted(known))}"
    return InvalidArgument(f"{owner} has no option {name!r}: {hint}")
