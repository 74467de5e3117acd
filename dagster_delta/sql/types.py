"""Spark's rules for the types of SQL expressions, in ANSI mode."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from functools import reduce

from dagster_delta.protocol.schema import (
    DataType,
    DecimalType,
    PrimitiveType,
    StructField,
    inner_types,
)

BINARY = PrimitiveType("binary")
BOOLEAN = PrimitiveType("boolean")
DATE = PrimitiveType("date")
DOUBLE = PrimitiveType("double")
FLOAT = PrimitiveType("float")
INTEGER = PrimitiveType("integer")
LONG = PrimitiveType("long")
STRING = PrimitiveType("string")
TIMESTAMP = PrimitiveType("timestamp")
TIMESTAMP_NTZ = PrimitiveType("timestamp_ntz")
VARIANT = PrimitiveType("variant")
VOID = PrimitiveType("void")

INTEGRAL_BITS = {"byte": 7, "short": 15, "integer": 31, "long": 63}
"""Bits of a number of each integral type, without its sign."""
_INTEGRALS = tuple(INTEGRAL_BITS)
_FRACTIONS = ("float", "double")
_DATES = ("date", "timestamp_ntz", "timestamp")  # Each type widens to those after it.
_DIGITS = {"byte": 3, "short": 5, "integer": 10, "long": 20}
_MAX_PRECISION = 38


def is_integral(data_type: DataType) -> bool:
    """Whether the type is a whole number."""
    return str(data_type) in _INTEGRALS


def fits(value: int, data_type: DataType) -> bool:
    """Whether an integral type has a whole number."""
    bound = 1 << INTEGRAL_BITS[str(data_type)]
    return -bound <= value < bound


def is_numeric(data_type: DataType) -> bool:
    """Whether the type is a number."""
    return isinstance(data_type, DecimalType) or str(data_type) in _INTEGRALS + _FRACTIONS


def is_primitive(data_type: DataType) -> bool:
    """Whether expressions can compute with values of the type."""
    if isinstance(data_type, PrimitiveType):
        return data_type != VARIANT and not data_type.is_read_only
    return isinstance(data_type, DecimalType)


def holds_values(data_type: DataType) -> bool:
    """Whether the type is primitive, or is made of primitive types."""
    inner = inner_types(data_type)
    return all(map(holds_values, inner)) if inner else is_primitive(data_type) and data_type != VOID


def decimal_of_integral(data_type: DataType) -> DecimalType:
    """The decimal that holds every value of an integral type."""
    return DecimalType(_DIGITS[str(data_type)], 0)


def decimal_of(value: Decimal) -> DecimalType | None:
    """The type that Spark gives to a decimal constant; None if it has more than 38 digits."""
    _, digits, exponent = value.as_tuple()
    scale = max(0, -int(exponent))
    precision = max(len(digits) + max(0, int(exponent)), scale, 1)
    return DecimalType(precision, scale) if precision <= _MAX_PRECISION else None


def common_type(types: Sequence[DataType]) -> DataType | None:
    """The type to which Spark converts all operands; None if there is none or it is uncertain."""
    first: DataType | None = types[0] if types else None
    return reduce(_find_wider_type, types[1:], first)


def _find_wider_type(left: DataType | None, right: DataType | None) -> DataType | None:
    if left is None or right is None or left == right:
        return left if right is not None else None
    if VOID in (left, right):
        return right if left == VOID else left
    if STRING in (left, right):
        return _promoted_string(right if left == STRING else left)
    if is_numeric(left) and is_numeric(right):
        return _wider_number(left, right)
    first, second = str(left), str(right)
    if first in _DATES and second in _DATES:
        return PrimitiveType(_DATES[max(_DATES.index(first), _DATES.index(second))])
    return None


def _promoted_string(other: DataType) -> DataType | None:
    if is_integral(other):
        return LONG
    if is_numeric(other):
        return DOUBLE
    return other if str(other) in (*_DATES, "boolean") else None


def _wider_number(left: DataType, right: DataType) -> DataType | None:
    if isinstance(left, DecimalType) or isinstance(right, DecimalType):
        if str(left) in _FRACTIONS or str(right) in _FRACTIONS:
            return DOUBLE
        first, second = (
            number if isinstance(number, DecimalType) else decimal_of_integral(number)
            for number in (left, right)
        )
        scale = max(first.scale, second.scale)
        precision = max(first.precision - first.scale, second.precision - second.scale) + scale
        # Beyond 38 digits Spark rounds; the rules differ between its versions.
        return DecimalType(precision, scale) if precision <= _MAX_PRECISION else None
    names = (str(left), str(right))
    if any(name in _FRACTIONS for name in names):
        return DOUBLE if "double" in names or names[0] != names[1] else FLOAT
    return PrimitiveType(_INTEGRALS[max(map(_INTEGRALS.index, names))])


def sql_type_name(data_type: DataType) -> str:
    """The SQL name of the type, for messages and casts."""
    names = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}
    return names.get(str(data_type), str(data_type))


def collation_of(field: StructField) -> str | None:
    """The collation of a text column, or of some text in it; None if all are binary."""
    collations = field.metadata.get("__COLLATIONS")
    if not isinstance(collations, dict) or not collations:
        return None
    return str(next(iter(collations.values())))
