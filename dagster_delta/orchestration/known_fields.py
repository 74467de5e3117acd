"""Configuration that refuses unknown fields, and names the nearest one.

Dagster checks the fields of a resource that YAML or the Launchpad configures, and silently drops
unknown fields from Python: a typo, or an option of an earlier integration, would have no effect.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, ClassVar, get_args

from pydantic import BaseModel

from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.described_fields import DescribedFields
from dagster_delta.storage.locations import check_no_password

_LOCATIONS = frozenset({"root_uri", "uri", "url"})


class KnownFieldsOnly(DescribedFields):
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
        for name, value in data.items():
            if name in _LOCATIONS and type(value) is str:
                check_no_password(value)
            _refuse_plain_mapping(type(self), name, value)
        super().__init__(**data)


def _refuse_plain_mapping(owner: type[BaseModel], name: str, value: object) -> None:
    """Refuse a plain mapping for a field that takes one of several classes: Dagster needs the
    class, and its error for any other mapping names no field.
    """
    field = owner.model_fields.get(name)
    if field is None or not field.discriminator or not isinstance(value, Mapping):
        return
    if len(value) == 1 and isinstance(next(iter(value.values())), Mapping):
        return
    classes = ", ".join(choice.__name__ for choice in get_args(field.annotation))
    # No values: some are secrets.
    raise InvalidArgument(
        f"{name} of {owner.__name__} is a plain mapping, which does not say of what kind: pass one "
        f"of {classes} instead"
    )
