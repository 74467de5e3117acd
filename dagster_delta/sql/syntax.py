"""The syntax tree of an expression, before columns and types are known."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from dagster_delta.protocol.schema import DataType
from dagster_delta.sql.typed import Literal


class Name(msgspec.Struct, frozen=True):
    """A column or a field of one: `a`, `a.b`, `` `odd name` ``."""

    parts: tuple[str, ...]


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


Syntax: TypeAlias = Name | Literal | Function | CastSyntax | Opaque
