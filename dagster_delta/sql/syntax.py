"""The syntax tree of an expression, before columns and types are known."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from dagster_delta.protocol.schema import DataType


class Name(msgspec.Struct, frozen=True):
    """A column or a field of one: `a`, `a.b`, `` `odd name` ``."""

    parts: tuple[str, ...]


class LiteralSyntax(msgspec.Struct, frozen=True):
    """A constant with its Spark type; None is null."""

    value: object
    data_type: DataType
    depends_on_time_zone: bool = False
    """Whether the value was read in the session's time zone."""


class Function(msgspec.Struct, frozen=True):
    """An operator or a function, by its lower-case name: `=`, `and`, `is null`, `case`, `year`."""

    name: str
    arguments: tuple[Syntax, ...]


class CastSyntax(msgspec.Struct, frozen=True):
    """`CAST(child AS type)`."""

    child: Syntax
    data_type: DataType


class Opaque(msgspec.Struct, frozen=True):
    """A parsed part that only Spark evaluates."""

    construct: str
    """Its name in an error."""
    names: tuple[Name, ...]
    """Names in it, some of which may not be columns."""


Syntax: TypeAlias = Name | LiteralSyntax | Function | CastSyntax | Opaque
