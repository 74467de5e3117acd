"""Fields of forms and of YAML, and arguments of the functions that define assets, jobs and sensors:
a field that is an argument of a function is described by it; unknown ones are refused, and the
nearest one is named.

Dagster checks the fields of a resource that YAML or the Launchpad configures, and silently drops
unknown fields from Python: a typo, or an option of an earlier integration, would have no effect.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from functools import cache, wraps
from types import UnionType
from typing import Any, ClassVar, NoReturn, ParamSpec, TypeVar, get_args, is_typeddict

import dagster as dg
from pydantic import BaseModel

from dagster_delta.errors import InvalidArgument
from dagster_delta.nearest_name import misspelled_name, nearest_name
from dagster_delta.storage import check_no_password, check_place, resolve_variable

_P = ParamSpec("_P")
_T = TypeVar("_T")

_OneAsset = dg.AssetsDefinition | dg.AssetSpec | dg.SourceAsset
_NAMES_OF_ASSETS = {"Any", "Asset", "AssetReference", "AssetsDefinition", "WatchedTable", "object"}
"""Names of annotations that take one asset."""

_LOCATIONS = frozenset({"root_uri", "uri"})
_ARGUMENT = re.compile(r"^    (\w+): (.+(?:\n        .+)*)", re.MULTILINE)


class DescribedFields(BaseModel):
    """A mixin for the options of a function: a form, or attributes in YAML."""

    passed_to: ClassVar[Callable[..., object] | None] = None
    """The function that takes the fields as arguments. Its docstring describes those without a
    description of their own."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: object) -> None:
        """Describe the fields that are arguments."""
        texts = _argument_texts(cls.passed_to)
        for name, field in cls.model_fields.items():
            field.description = field.description or texts.get(name)

    def arguments(self) -> dict[str, Any]:
        """The fields that are arguments of `passed_to`, unless they are None."""
        fields, target = type(self).model_fields.keys(), type(self).passed_to
        names = fields & target.__annotations__.keys() - _positional_names(target)
        given = {name: getattr(self, name) for name in names}
        return {name: value for name, value in given.items() if value is not None}


@cache
def _positional_names(target: Any) -> frozenset[str]:  # noqa: ANN401  as it is called
    """Arguments of a function that are given by position, such as the table of a statement."""
    if not inspect.isfunction(target):
        return frozenset()
    parameters = inspect.signature(target).parameters.values()
    kind = inspect.Parameter.POSITIONAL_ONLY
    return frozenset(parameter.name for parameter in parameters if parameter.kind is kind)


@cache
def _argument_texts(function: Callable[..., object] | None) -> dict[str, str]:
    """The arguments of a function, as its docstring describes them."""
    parts = re.split("(?:Args|Attributes):\n", inspect.getdoc(function) or "")
    found = _ARGUMENT.findall(parts[1].partition("\n\n")[0]) if parts[1:] else ()
    texts = {name: " ".join(text.split()) for name, text in found}
    return {name: text[0].upper() + text[1:] for name, text in texts.items()}


class KnownFieldsOnly(DescribedFields):
    """A mixin, listed before the base class of a configuration, which refuses other fields."""

    def __init__(self, **data: Any) -> None:
        known = {field.alias or name for name, field in type(self).model_fields.items()}
        # pydantic makes a configuration again of its own attributes.
        data = {
            name
            if name not in (fields := type(self).model_fields)
            else fields[name].alias or name: v
            for name, v in data.items()
        }
        for name in sorted(data.keys() - known):
            page = " (docs/migration.md lists the options of other packages)"
            _refuse_option(type(self).__name__, name, known, see=page)
        for name, value in data.items():
            if name in _LOCATIONS and type(value) is str:
                check_no_password(value)
                check_place(value)
            _refuse_plain_mapping(type(self), name, value)
        super().__init__(**data)


def _refuse_option(owner: str, name: str, known: Collection[str], *, see: str = "") -> NoReturn:
    near = nearest_name(name, known)
    hint = f"did you mean {near!r}?" if near else f"it has {', '.join(sorted(known))}"
    raise InvalidArgument(f"{owner} has no option {name!r}: {hint}{see}")


def checked_arguments(
    *passed_to: Any,
) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """A decorator for a public function: its arguments may be environment variables (`EnvVar`), and
    unknown arguments, and assets where it takes something else, are refused.

    Args:
        passed_to: the functions, or the class of options, that its `**options` go to.
    """

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        parameters = inspect.signature(function).parameters
        known = _argument_names(function).union(*map(_argument_names, passed_to))
        # Dagster has arguments that it does not list.
        has_more = dg.asset in passed_to or dg.AssetSpec in passed_to

        @wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            for name in sorted(kwargs.keys() - known):
                if not has_more or misspelled_name(name, known):
                    _refuse_option(function.__name__, name, known)
            given = dict(zip(parameters, args, strict=False)) | kwargs
            for name, value in given.items():
                if isinstance(value, _OneAsset) and name in parameters:
                    _check_takes_asset(parameters[name], value, function.__name__)
            resolved: Any = [_resolve_variables(value) for value in args]
            options: Any = {
                name: value if name == "storage_options" else _resolve_variables(value)
                for name, value in kwargs.items()
            }
            return function(*resolved, **options)

        return call

    return decorate


def _argument_names(target: Any) -> set[str]:  # noqa: ANN401
    """The names of the arguments of a function, or of a class of options."""
    if is_typeddict(target):
        return set(target.__annotations__)
    parameters = inspect.signature(target).parameters.values()
    names = {one.name for one in parameters if one.kind is not inspect.Parameter.VAR_KEYWORD}
    return {name for name in names - {"self"} if not name.startswith("_")}


def _check_takes_asset(parameter: inspect.Parameter, asset: _OneAsset, owner: str) -> None:
    """Refuse an asset for a parameter that takes a location, or several assets."""
    annotation: object = parameter.annotation
    choices = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    names = [getattr(choice, "__name__", choice) for choice in choices]
    spelled = " | ".join(map(str, names))
    if not {name.rpartition(".")[2] for name in spelled.split(" | ")} & _NAMES_OF_ASSETS:
        raise InvalidArgument(
            f"{parameter.name} of {owner} is {spelled}, and not the asset "
            f"{asset.key.to_user_string()}"
        )


def _resolve_variables(value: Any) -> Any:  # noqa: ANN401
    """The value, in which environment variables are what they stand for."""
    if type(value) in (list, tuple):
        return type(value)(map(_resolve_variables, value))
    if type(value) is dict:
        return {name: _resolve_variables(item) for name, item in value.items()}
    return resolve_variable(value)


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
