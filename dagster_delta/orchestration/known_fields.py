"""Configuration that refuses unknown fields, and names the nearest one.

Dagster checks the fields of a resource that YAML or the Launchpad configures, and silently drops
unknown fields from Python: a typo, or an option of an earlier integration, would have no effect.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args, get_origin

from pydantic import BaseModel

from dagster_delta.errors import InvalidArgument


class KnownFieldsOnly(BaseModel):
    """A mixin, listed before the Dagster base class of a configuration: other fields are refused.

    A class with fewer fields than its counterparts in other integrations may ignore such fields if
    they are None or false: see `forgives_unset`.
    """

    forgives_unset: ClassVar[bool] = False
    """Whether unknown fields that are None or false are ignored."""

    def __init__(self, **data: Any) -> None:
        known = {field.alias or name for name, field in type(self).model_fields.items()}
        for name in sorted(data.keys() - known):
            if self.forgives_unset and (data[name] is None or data[name] is False):
                del data[name]
                continue
            close = difflib.get_close_matches(name, sorted(known), n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(sorted(known))}"
            raise InvalidArgument(
                f"{type(self).__name__} has no option {name!r}: {hint} (docs/migration.md lists "
                "the options of other packages)"
            )
        for name, field in type(self).model_fields.items():
            if field.is_required() and not {name, field.alias} & data.keys():
                hint = (field.description or "").rstrip(".")
                raise InvalidArgument(
                    f"{type(self).__name__} needs {field.alias or name}{hint and f': {hint}'}"
                )
        for name, value in data.items():
            _check_kind(type(self), name, value)
            _check_choice(type(self), name, value)
        super().__init__(**data)


def _check_kind(owner: type[BaseModel], name: str, value: object) -> None:
    """Refuse a plain mapping for a field that takes one of several classes: Dagster needs the
    class, and its error for any other mapping names no field.
    """
    field = owner.model_fields.get(name)
    if field is not None and field.annotation in (str, str | None) and isinstance(value, Path):
        raise InvalidArgument(f"{name} of {owner.__name__} is a Path, and takes a text: str(path)")
    if field is not None and field.annotation is str and value is None:
        raise InvalidArgument(
            f"{name} of {owner.__name__} is None, and takes a text; if it is from os.environ, the "
            "variable is not set"
        )
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


def _check_choice(owner: type[BaseModel], name: str, value: object) -> None:
    """Refuse a value outside a choice, with an error that says what to do."""
    field = owner.model_fields.get(name)
    if field is None:
        return
    allowed = _choices(field.annotation)
    text = value.value if isinstance(value, Enum) else value
    # Expressions such as EnvVar are instances of a str subclass, which Dagster resolves.
    if not allowed or text in allowed or type(text) not in (str, int, float, bool, type(None)):
        return
    hint = f": leave it out for {field.default}" if text is None else ""
    raise InvalidArgument(
        f"{name} of {owner.__name__} is {text!r}, and takes one of {', '.join(allowed)}{hint}"
    )


def _choices(annotation: object) -> tuple[str, ...]:
    return get_args(annotation) if get_origin(annotation) is Literal else ()
