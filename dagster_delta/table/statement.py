"""Statements as methods of a table: the page of a statement is imported when it is first called."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

if TYPE_CHECKING:
    from dagster_delta.table.table_handle import TableHandle

_P = ParamSpec("_P")
_Result = TypeVar("_Result", covariant=True)
_Handle = TypeVar("_Handle", bound="TableHandle")


class Statement(Generic[_Handle, _P, _Result]):
    """A method of a table that is a function of a page, whose first argument is the table.

    Args:
        load: returns the function, and imports its page. The function takes the place of the
            statement in the class then.
    """

    def __init__(self, load: Callable[[], Callable[Concatenate[_Handle, _P], _Result]]) -> None:
        self._load = load

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner, name

    @overload
    def __get__(
        self, instance: None, owner: type
    ) -> Callable[Concatenate[_Handle, _P], _Result]: ...

    @overload
    def __get__(self, instance: _Handle, owner: type) -> Callable[_P, _Result]: ...

    def __get__(self, instance: _Handle | None, owner: type) -> Callable[..., _Result]:
        function = self._load()
        setattr(self._owner, self._name, function)
        return function if instance is None else MethodType(function, instance)


class Factory(Generic[_P]):
    """A class method of a table that is a function of a page, whose first argument is the class."""

    def __init__(
        self, load: Callable[[], Callable[Concatenate[type[TableHandle], _P], TableHandle]]
    ) -> None:
        self._load = load

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner, name

    def __get__(self, instance: object, owner: type[_Handle]) -> Callable[_P, _Handle]:
        function: Any = self._load()
        setattr(self._owner, self._name, classmethod(function))
        return cast("Callable[_P, _Handle]", MethodType(function, owner))
