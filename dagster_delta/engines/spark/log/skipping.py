"""File skipping by a predicate on a log, as conditions that Spark evaluates.

The rules are those for files on the driver, over columns instead of arrays. Dropped files certainly
have no match; kept files are checked again if they are few enough.

Spec: Partition Value Serialization; Per-file Statistics.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.features.text_limits import char_length, padded_type
from dagster_delta.protocol.schema import DataType, DecimalType, PrimitiveType
from dagster_delta.protocol.statistics.bounds import (
    DOUBLE_DIGITS,
    DOUBLE_ERROR,
    END_OF_SECONDS_IN_OFFSETS,
    LAST_CHARACTER,
    MINUTE,
    OLD_ENDING,
    STRING_PREFIX_BYTES,
    Sides,
    keeps_order,
    next_prefix,
    value_ranges,
)
from dagster_delta.protocol.statistics.predicates import (
    Bounds,
    Predicate,
    outcomes_under,
    referenced_columns,
)
from dagster_delta.protocol.statistics.statistics import StatisticsColumn, plant
from dagster_delta.protocol.values.arrow_values import scalar_of
from dagster_delta.protocol.values.partition_values import HIVE_NULL, is_null_text

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql import types as spark_types

Truth: TypeAlias = "bool | Column"
"""True or false for every file, or a column without nulls."""

_INTEGERS = ("byte", "short", "integer", "long")
_COUNTS = ("integer", "long")
_FLOATS = ("float", "double")
_TIMESTAMPS = ("timestamp", "timestamp_ntz")
_TEMPORAL = ("date", *_TIMESTAMPS)

_DAY = 86_400_000_000
_MILLISECOND = 1_000
_ZONE = r"(Z|[+-]\d\d:?\d\d)$"
_DATE = r"^\d{4}-\d\d-\d\d$"


@dataclass(frozen=True, slots=True)
class LoggedStatistic:
    """One statistic of every file, as a column."""

    column: Column
    stored_as: str | None = None
    """Name of the Spark type that a checkpoint holds; None for JSON, read as `statistics_type`."""


class _ColumnLogic:
    """Truth values as columns; a value that is the same for every file never reaches Spark."""

    yes = True
    no = False

    def both(self, left: Truth, right: Truth) -> Truth:
        if left is False or right is False:
            return False
        if left is True or right is True:
            return right if left is True else left
        return left & right

    def either(self, left: Truth, right: Truth) -> Truth:
        if left is True or right is True:
            return True
        if left is False or right is False:
            return right if left is False else left
        return left | right

    def negated(self, value: Truth) -> Truth:
        return not value if isinstance(value, bool) else ~value


_LOGIC = _ColumnLogic()


def may_match(predicate: Predicate, bounds: Mapping[tuple[str, ...], Bounds]) -> Truth:
    """The files in which a row may satisfy the predicate.

    `bounds`: per path; a column without an entry is unknown.
    """
    found: Truth = outcomes_under(predicate, bounds, _LOGIC).true
    return found


def partition_bounds(
    predicate: Predicate, configuration: TableConfiguration, values: Column, functions: ModuleType
) -> dict[tuple[str, ...], Bounds]:
    """Bounds of the partition columns that a predicate names.

    `values`: column of maps, serialized values by physical name.
    """
    paths = referenced_columns(predicate)
    found: dict[tuple[str, ...], Bounds] = {}
    for name in configuration.partition_columns:
        if (name,) in paths:
            field = configuration.schema.field(name)
            text = values.getItem(configuration.physical_name(name))
            for null_text in ("", HIVE_NULL):
                if is_null_text(null_text, field.data_type):
                    text = functions.when(text != null_text, text)
            length = char_length(padded_type(field))
            if length is not None:
                text = functions.rpad(
                    text,
                    functions.greatest(functions.lit(length), functions.char_length(text)),
                    " ",
                )
            value = _parsed_text(text, field.data_type, functions)
            found[name,] = _SparkBounds(
                functions, field.data_type, value, value, text.isNull(), text.isNotNull()
            )
    return found


def statistics_type(columns: Sequence[StatisticsColumn]) -> spark_types.StructType:
    """The statistics of a file that must be read from their JSON."""
    from pyspark.sql import types

    tree: dict[str, Any] = {"numRecords": types.LongType()}
    for column in columns:
        leaf = _json_leaf(column.data_type) if column.has_bounds else None
        if leaf is not None:
            plant(tree, ("minValues", *column.path), leaf)
            plant(tree, ("maxValues", *column.path), leaf)
        plant(tree, ("nullCount", *column.path), types.LongType())
    return _struct_type(tree)


def statistics_bounds(
    columns: Mapping[tuple[str, ...], StatisticsColumn],
    leaf: Callable[..., LoggedStatistic | None],
    functions: ModuleType,
) -> dict[tuple[str, ...], Bounds]:
    """Bounds of data columns as statistics give them.

    `leaf`: returns the statistic at a path of names, None if there is none.
    """
    records = leaf("numRecords")
    found: dict[tuple[str, ...], Bounds] = {}
    for path, each in columns.items():
        bounds = _SparkBounds(functions, each.data_type, None, None, True, True)
        nulls = leaf("nullCount", *each.path) if each.has_null_count else None
        if nulls is not None and nulls.stored_as in (None, *_COUNTS):
            always = functions.lit(True)
            count = nulls.column
            with_null = functions.coalesce(count != 0, always)
            with_value: Truth = True
            if records is not None and records.stored_as in (None, *_COUNTS):
                with_value = functions.coalesce(count != records.column, always)
            bounds = replace(bounds, may_hold_null=with_null, may_hold_value=with_value)
        if each.has_bounds:
            low, high = leaf("minValues", *each.path), leaf("maxValues", *each.path)
            bounds = _with_range(bounds, low, high)
        found[path] = bounds
    return found


@dataclass(frozen=True, slots=True)
class _SparkBounds:
    """The bounds of one column in every file.

    Minimum and maximum are in the form in which values compare: integers as bigint, floats as
    double, text as its bytes, days and timestamps as microseconds, in UTC where they have a zone.
    """

    functions: ModuleType
    data_type: DataType
    minimum: Column | None
    maximum: Column | None
    may_hold_null: Truth
    may_hold_value: Truth
    maximum_covers_nan: bool = True

    def sides(self, value: object, data_type: DataType) -> Sides | None:
        convert = self._widening(data_type)
        if convert is None:
            return None
        low, high = convert(self.minimum), convert(self.maximum)
        wanted = _literal(value, data_type, self.functions)
        at_most = self._possible(low, lambda bound: bound <= wanted)
        at_least = self._possible(high, lambda bound: bound >= wanted)
        equal = _LOGIC.both(at_most, at_least)
        above = self._possible(high, lambda bound: bound > wanted)
        if not self.maximum_covers_nan:
            # NaN is the greatest value, and a maximum that ignores it does not bound it.
            at_least = above = True
        below = self._possible(low, lambda bound: bound < wanted)
        return Sides(below, at_most, equal, at_least, above)

    def membership(
        self, values: Sequence[object], data_type: DataType
    ) -> tuple[Truth, Truth] | None:
        convert = self._widening(data_type)
        if convert is None:
            return None
        low, high = convert(self.minimum), convert(self.maximum)
        inside: Truth = False
        for first, last in value_ranges(sorted(set(values))):
            inside = _LOGIC.either(inside, self._touches(low, high, first, last, data_type))
        return inside, True

    def _touches(
        self,
        low: Column | None,
        high: Column | None,
        first: object,
        last: object,
        data_type: DataType,
    ) -> Truth:
        """The files whose values may be between the first and the last."""
        smallest = _literal(first, data_type, self.functions)
        greatest = _literal(last, data_type, self.functions)
        return _LOGIC.both(
            self._possible(low, lambda bound: bound <= greatest),
            self._possible(high, lambda bound: bound >= smallest),
        )

    def prefix(self, prefix: str) -> tuple[Truth, Truth]:
        functions, start = self.functions, _bytes_of(prefix, self.functions)
        inside = self._possible(self.maximum, lambda bound: bound >= start)
        following = next_prefix(prefix)
        if following is not None:
            end = _bytes_of(following, functions)
            inside = _LOGIC.both(inside, self._possible(self.minimum, lambda bound: bound < end))
        return inside, True

    def _possible(self, bound: Column | None, compare: Callable[[Column], Column]) -> Truth:
        """A comparison with an unknown bound is possible."""
        if bound is None:
            return True
        return self.functions.coalesce(compare(bound), self.functions.lit(True))

    def _widening(self, target: DataType) -> Callable[[Column | None], Column | None] | None:
        """Converts bounds to a wider type; None if their order could change."""
        source = self.data_type
        if self.minimum is None and self.maximum is None:
            return None
        if source != target and not keeps_order(source, target):
            return None
        if isinstance(target, DecimalType):
            return lambda bound: None if bound is None else bound.try_cast(str(target))
        if _name(target) == "double" and _name(source) in _INTEGERS:
            return lambda bound: None if bound is None else bound.cast("double")
        if _name(target) == "date" and _name(source) in _TIMESTAMPS:
            day = self.functions.lit(_DAY)
            return lambda bound: (
                None
                if bound is None
                else self.functions.try_subtract(bound, self.functions.pmod(bound, day))
            )
        return lambda bound: bound


def _with_range(
    bounds: _SparkBounds, low: LoggedStatistic | None, high: LoggedStatistic | None
) -> _SparkBounds:
    """The bounds with minimum and maximum from statistics, widened if they are truncated."""
    functions, name = bounds.functions, _name(bounds.data_type)
    if name == "string" and high is not None:
        # Writers truncate long strings, and some do not increase the last character of a maximum.
        text = high.column.cast("string")
        kept = functions.regexp_replace(text, OLD_ENDING, "")
        longer = functions.concat(kept, functions.lit(LAST_CHARACTER))
        may_be_cut = functions.octet_length(text) >= STRING_PREFIX_BYTES
        high = LoggedStatistic(functions.when(may_be_cut, longer).otherwise(text))
    minimum = _bound(low, bounds.data_type, functions)
    maximum = _bound(high, bounds.data_type, functions)
    if name == "double":
        # Statistics from before the column was widened have floats.
        if minimum is not None:
            minimum = functions.least(minimum, minimum.try_cast("float").cast("double"))
        if maximum is not None:
            maximum = functions.greatest(maximum, maximum.try_cast("float").cast("double"))
    data_type = bounds.data_type
    if isinstance(data_type, DecimalType) and data_type.precision > DOUBLE_DIGITS:
        # Some writers compute them as doubles. What is no value of the type is unknown.
        spelled = f"decimal({data_type.precision}, {data_type.scale})"
        if minimum is not None:
            number = minimum.cast("double")
            minimum = (number - functions.abs(number) * DOUBLE_ERROR).try_cast(spelled)
        if maximum is not None:
            number = maximum.cast("double")
            maximum = (number + functions.abs(number) * DOUBLE_ERROR).try_cast(spelled)
    if name == "timestamp":
        # Spark before 4.0 drops the seconds of offsets from UTC.
        minimum = _moved_if_early(minimum, functions.try_subtract, functions)
        maximum = _moved_if_early(maximum, functions.try_add, functions)
    if name in _TIMESTAMPS and maximum is not None:
        # Writers may truncate timestamps in statistics to milliseconds.
        maximum = functions.try_add(maximum, functions.lit(_MILLISECOND))
    return replace(
        bounds,
        minimum=minimum,
        maximum=maximum,
        # Several writers omit NaN from minimum and maximum.
        maximum_covers_nan=name not in _FLOATS,
    )


def _moved_if_early(
    bound: Column | None, move: Callable[[Column, Column], Column], functions: ModuleType
) -> Column | None:
    """A timestamp, moved if offsets from UTC had seconds at that time."""
    if bound is None:
        return None
    moved = move(bound, functions.lit(MINUTE))
    return functions.when(bound < END_OF_SECONDS_IN_OFFSETS, moved).otherwise(bound)


def _bound(
    found: LoggedStatistic | None, data_type: DataType, functions: ModuleType
) -> Column | None:
    if found is None or not _is_readable_as(found.stored_as, data_type):
        return None
    if found.stored_as == "timestamp":
        return functions.unix_micros(found.column)
    return _comparable(found.column, data_type, functions)


def _is_readable_as(stored_as: str | None, data_type: DataType) -> bool:
    """Whether a bound can be read as a value of the column, whose type may have changed since the
    checkpoint was written.
    """
    if stored_as is None:
        return True
    if isinstance(data_type, DecimalType):
        return stored_as in ("decimal", *_INTEGERS)
    name = _name(data_type)
    if name in _INTEGERS:
        return stored_as in _INTEGERS
    if name in _FLOATS:
        return stored_as in (*_FLOATS, *_INTEGERS[:-1])  # a double rounds a long
    if name in _TIMESTAMPS:
        return stored_as in (_TEMPORAL if name == "timestamp_ntz" else _TIMESTAMPS)
    return stored_as == name


def _parsed_text(text: Column, data_type: DataType, functions: ModuleType) -> Column | None:
    """A serialized partition value in the form in which values compare; null if it is none."""
    if _name(data_type) == "float":
        text = text.try_cast("double")
    return _comparable(text, data_type, functions)


def _comparable(value: Column, data_type: DataType, functions: ModuleType) -> Column | None:
    """A bound in the form in which values compare, from JSON or of the table's type."""
    name = _name(data_type)
    if name in _INTEGERS:
        return value.try_cast("bigint")
    if name in _FLOATS:
        number = value.try_cast("float").cast("double") if name == "float" else value
        number = number.try_cast("double")
        return functions.when(~functions.isnan(number), number)
    if isinstance(data_type, DecimalType):
        return value.try_cast(str(data_type))
    match name:
        case "string" | "binary":
            return value.cast("binary")
        case "boolean":
            return value.try_cast("boolean")
        case "date":
            text = value.cast("string")
            days = functions.unix_date(functions.when(text.rlike(_DATE), text).try_cast("date"))
            return days.cast("bigint") * functions.lit(_DAY)
        case "timestamp" | "timestamp_ntz":
            return _microseconds(value, functions, with_zone=name == "timestamp")
    return None


def _microseconds(value: Column, functions: ModuleType, *, with_zone: bool) -> Column:
    """A timestamp's text as microseconds; a text without a zone is in UTC, as in the log."""
    text = value.cast("string")
    if not with_zone:
        local = functions.regexp_replace(text, "Z$", "")
        text = functions.when(~local.rlike(_ZONE), local)
    dated = functions.concat(text, functions.lit(" 00:00:00Z"))
    zoned = functions.concat(text, functions.lit("Z"))
    spelled = (
        functions.when(text.rlike(_DATE), dated).when(text.rlike(_ZONE), text).otherwise(zoned)
    )
    return functions.unix_micros(spelled.try_cast("timestamp"))


def _literal(value: Any, data_type: DataType, functions: ModuleType) -> Column:  # noqa: ANN401
    """A value of a predicate in the form in which values compare."""
    name = _name(data_type)
    if isinstance(data_type, DecimalType):
        return functions.lit(format(value, "f")).try_cast(str(data_type))
    if name in _TEMPORAL:
        ticks = scalar_of(value, data_type).cast(pa.int32() if name == "date" else pa.int64())
        return functions.lit(ticks.as_py() * (_DAY if name == "date" else 1))
    if name == "float":
        return functions.lit(struct.unpack("f", struct.pack("f", value))[0])
    if name == "double":
        return functions.lit(float(value))
    if name == "string":
        return _bytes_of(value, functions)
    return functions.lit(bytearray(value) if name == "binary" else value)


def _bytes_of(text: str, functions: ModuleType) -> Column:
    # Bytes compare in one order under any collation of the session.
    return functions.lit(text).cast("binary")


def _name(data_type: DataType) -> str:
    return data_type.name if isinstance(data_type, PrimitiveType) else ""


def _json_leaf(data_type: DataType) -> spark_types.DataType | None:
    """The type as which a bound is decoded from JSON; it is null if it does not fit."""
    from pyspark.sql import types

    name = _name(data_type)
    if isinstance(data_type, DecimalType):
        # Decoded from the text of the number, never through a double.
        return types.DecimalType(data_type.precision, data_type.scale)
    if name in _INTEGERS:
        return types.LongType()
    if name in _FLOATS:
        return types.DoubleType()
    return types.BooleanType() if name == "boolean" else types.StringType()


def _struct_type(tree: Mapping[str, Any]) -> spark_types.StructType:
    from pyspark.sql import types

    return types.StructType(
        [
            types.StructField(name, _struct_type(node) if isinstance(node, dict) else node)
            for name, node in tree.items()
        ]
    )
