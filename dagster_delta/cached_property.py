"""A property that is computed once for each instance, without a lock.

`functools.cached_property` of Python 3.11 holds one lock for all instances of a class while it
computes: threads that read different tables would wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

_Value = TypeVar("_Value")


class cached_property(Generic[_Value]):  # noqa: N801 - it is written as a decorator
    """A property whose first value is kept in the `__dict__` of the instance.

    Threads that ask one instance at the same time may each compute the value; all of them get the
    one that was kept first. What raises is computed again the next time.
    """

    def __init__(self, compute: Callable[[Any], _Value]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> _Value: ...

    def __get__(self, instance: object | None, owner: type) -> Self | _Value:
        if instance is None:
            return self
        # Once kept, the value hides this descriptor, which has no `__set__`.
        kept: _Value = instance.__dict__.setdefault(self._name, self._compute(instance))
        return kept
