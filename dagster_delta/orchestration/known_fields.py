"""Fields of forms and of YAML: described where they are declared, or by the function they go to;
unknown ones are refused, and the nearest one is named.

Dagster checks the fields of a resource that YAML or the Launchpad configures, and silently drops
unknown fields from Python: a typo, or an option of an earlier integration, would have no effect.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar, get_args

from pydantic import BaseModel

from dagster_delta.errors import InvalidArgument
from dagster_delta.storage.locations import check_no_password

_LOCATIONS = frozenset({"root_uri", "uri"})
_ARGUMENT = re.compile(r"^    (\w+): (.+(?:\n        .+)*)", re.MULTILINE)


class DescribedFields(BaseModel):
    """A mixin for the options of a function: a form, or attributes in YAML. The docstring below a
    field is its description.
    """

    passed_to: ClassVar[Callable[..., object] | None] = None
    """The function that takes the fields as arguments. Its docstring describes those that have no
    text of their own."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: object) -> None:
        """Add the descriptions."""
        texts = _argument_texts(cls.passed_to)
        # Pydantic finds them too, at 40 ms per class: it searches all modules for the class.
        if cls.__module__.startswith("dagster_delta."):
            texts = texts | _texts_of_module(cls.__module__).get(cls.__name__, {})
        for name, field in cls.model_fields.items():
            field.description = field.description or texts.get(name)

    def arguments(self) -> dict[str, Any]:
        """The fields that are arguments of `passed_to`, unless they are None."""
        names = type(self).model_fields.keys() & type(self).passed_to.__annotations__.keys()
        given = {name: getattr(self, name) for name in names}
        return {name: value for name, value in given.items() if value is not None}


@cache
def _argument_texts(function: Callable[..., object] | None) -> dict[str, str]:
    """The arguments of a function, as its docstring describes them."""
    parts = re.split("(?:Args|Attributes):\n", inspect.getdoc(function) or "")
    found = _ARGUMENT.findall(parts[1].partition("\n\n")[0]) if parts[1:] else ()
    texts = {name: " ".join(text.split()) for name, text in found}
    return {name: text[0].upper() + text[1:] for name, text in texts.items()}


@cache
def _texts_of_module(module: str) -> dict[str, dict[str, str]]:
    """The docstrings below the fields of each class of a module of this package."""
    found: dict[str, dict[str, str]] = {}
    try:
        source = inspect.getsource(sys.modules[module])
    except OSError:
        # A program that was packed without its source.
        return found
    for node in ast.parse(source).body:
        for field, below in pairwise(node.body if isinstance(node, ast.ClassDef) else ()):
            match field, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    of_class = found.setdefault(getattr(node, "name", ""), {})
                    of_class[name] = " ".join(text.split())
    return found


class KnownFieldsOnly(DescribedFields):
    """A mixin, listed before the base class of a configuration, which refuses other fields."""

    def __init__(self, **data: Any) -> None:
        known = {field.alias or name for name, field in type(self).model_fields.items()}
        for name in sorted(data.keys() - known):
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
