"""Fields of configuration that are arguments of a function, described by its docstring."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

_ARGUMENT = re.compile(r"^    (\w+): (.+(?:\n        .+)*)", re.MULTILINE)


class DescribedFields(BaseModel):
    """A mixin for the options of a function: a form, or attributes in YAML."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    passed_to: ClassVar[Callable[..., object] | None] = None
    """The function that takes the fields as arguments. Its docstring describes those that have no
    text of their own."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: object) -> None:
        """Add the texts."""
        texts = _argument_texts(cls.passed_to)
        for name, field in cls.model_fields.items():
            field.description = field.description or texts.get(name)

    def arguments(self) -> dict[str, Any]:
        """The fields that are arguments of `passed_to`, unless they are None."""
        names = _argument_texts(type(self).passed_to).keys() & type(self).model_fields.keys()
        given = {name: getattr(self, name) for name in names}
        return {name: value for name, value in given.items() if value is not None}


@cache
def _argument_texts(function: Callable[..., object] | None) -> dict[str, str]:
    """The arguments of a function, as its docstring describes them."""
    parts = re.split("(?:Args|Attributes):\n", inspect.getdoc(function) or "")
    found = _ARGUMENT.findall(parts[1].partition("\n\n")[0]) if parts[1:] else ()
    texts = {name: " ".join(text.split()) for name, text in found}
    return {name: text[0].upper() + text[1:] for name, text in texts.items()}
