"""Fields of forms and of YAML, described where they are declared or by the function they go to."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar

from pydantic import BaseModel

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
        texts = _argument_texts(cls.passed_to) | _attribute_texts(cls.__module__, cls.__name__)
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


def _attribute_texts(module: str, class_name: str) -> dict[str, str]:
    """The docstrings below the fields of a class of this package."""
    # Pydantic finds them too, at 40 ms per class: it searches all modules for the class.
    own = module.startswith("dagster_delta.")
    return _texts_of_module(module).get(class_name, {}) if own else {}


@cache
def _texts_of_module(module: str) -> dict[str, dict[str, str]]:
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
