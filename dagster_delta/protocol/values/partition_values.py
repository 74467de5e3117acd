"""Partition values as text, the directories they name, and file paths as URIs.

Spec: Partition Value Serialization; Add File and Remove File (path).
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal, InvalidOperation
from functools import cache, partial
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.errors import InvalidTable, SchemaMismatch, UnsupportedFeature
from dagster_delta.protocol.schema import DataType, DecimalType, PrimitiveType
from dagster_delta.protocol.values.arrow_columns import (
    integer_column,
    string_column,
    whole_array,
)
from dagster_delta.protocol.values.arrow_schema import to_arrow_type
from dagster_delta.protocol.values.arrow_values import null_scalar, scalar_of
from dagster_delta.protocol.values.moments import (
    read_day,
    read_moment,
    spell_day,
    spell_moment,
)
from dagster_delta.protocol.values.session_zone import session_zone

PartitionKey: TypeAlias = tuple[object, ...]

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
"""Directory name for a null partition value."""

_TEXT_TYPES = (PrimitiveType("string"), PrimitiveType("binary"))
_UNPARTITIONABLE = frozenset({"variant", "void"})

_ESCAPED_IN_DIRECTORIES = frozenset("\"#%'*/:=?\\{[]^\x7f" + "".join(map(chr, range(0x20))))
"""Characters that Hive's layout and Spark escape, and NUL, which file systems refuse."""

_TEMPORAL_TYPES: dict[DataType, str] = {
    PrimitiveType("date"): r"^\d{4}-\d\d-\d\d$",
    PrimitiveType("timestamp"): r"^\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,6})?Z$",
    PrimitiveType("timestamp_ntz"): r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?$",
}
"""The texts of each type that have one meaning in every zone and every reader."""

_ILLEGAL_IN_URIS = re.compile(r"[^A-Za-z0-9_\-!.~'()*,;:$&+=/@\xa0-\ud7ff\ue000-\U0010ffff]|\s")
"""Characters that `java.net.URI` encodes in a path: beyond ASCII, spaces and controls alone."""


def is_null_text(text: str | None, data_type: DataType) -> bool:
    """Whether a serialised partition value is null.

    CONVERT TO DELTA of a catalog table copies the name of Hive's null directory into the log. For
    most types it means null; in text and binary columns it is a value, as in delta-spark.
    """
    return not text or (text == HIVE_NULL and data_type not in _TEXT_TYPES)


def parse_partition_value(
    text: str | None, data_type: DataType, *, column: str | None = None
) -> object:
    """The value of one serialised partition value, as `python_values` gives it.

    The column may be wider than when the text was written; see `is_null_text` for what is null.
    """
    values = string_column([text])
    return python_values(parse_partition_column(values, data_type, column=column))[0]


def partition_key(
    types: Iterable[tuple[str, DataType]],
) -> Callable[[Mapping[str, str | None]], PartitionKey]:
    """The function from serialised values to what the files of one partition have in common:
    writers spell a time or a decimal number differently.

    `types`: the partition columns that count, by physical name.
    """
    columns = tuple(types)

    @cache
    def value(text: str | None, data_type: DataType) -> object:
        found = parse_partition_value(text, data_type)
        # NaN equals nothing, not even itself, but is one partition.
        return "NaN" if found != found else found

    def key(values: Mapping[str, str | None]) -> PartitionKey:
        return tuple(value(values.get(name), data_type) for name, data_type in columns)

    return key


def parse_partition_column(
    values: pa.Array | pa.ChunkedArray, data_type: DataType, *, column: str | None = None
) -> pa.Array:
    """The typed values of one partition column of many files.

    The column may be wider than when a text was written; see `is_null_text` for what is null.
    """
    values = whole_array(values)
    if not pa.types.is_dictionary(values.type):
        # Files repeat few values, so only the distinct ones are parsed.
        values = pc.dictionary_encode(values)
    distinct = pc.cast(values.dictionary, pa.string())
    check_partition_type(data_type, column=column)
    for null_text in ("", HIVE_NULL):
        if is_null_text(null_text, data_type):
            is_null = pc.equal(distinct, string_column([null_text])[0])
            distinct = pc.if_else(is_null, null_scalar(pa.string()), distinct)
    try:
        parsed = _parse_distinct(distinct, data_type)
    except (pa.ArrowInvalid, ValueError):
        raise _describe_unparseable(distinct, data_type, column) from None
    return pc.take(parsed, values.indices)


def _parse_distinct(values: pa.Array, data_type: DataType) -> pa.Array:
    if data_type in _TEMPORAL_TYPES and not _is_plain(values, _TEMPORAL_TYPES[data_type]):
        read = _text_reader(data_type)
        numbers = [None if text is None else read(text) for text in values.to_pylist()]
        arrow_type = to_arrow_type(data_type)
        width = pa.int32() if arrow_type.bit_width == 32 else pa.int64()
        return pc.cast(pc.cast(integer_column(numbers), width), arrow_type)
    match data_type:
        case PrimitiveType("timestamp"):
            return pc.cast(values, pa.timestamp("us", tz="UTC"))
        case _:
            return pc.cast(values, to_arrow_type(data_type))


def _is_plain(values: pa.Array, pattern: str) -> bool:
    """Whether Arrow reads all texts as they are meant."""
    return pc.all(pc.match_substring_regex(values, pattern)).as_py() is not False


def _text_reader(data_type: DataType) -> Callable[[str], int]:
    """Reads one text as delta-spark does, which casts it."""
    match data_type:
        case PrimitiveType("date"):
            return read_day
        case PrimitiveType("timestamp"):
            # Spec: it is in the zone of its writer, which the log does not name.
            return partial(read_moment, is_instant=True, default_zone=session_zone())
        case _:
            return partial(read_moment, is_instant=False)


def python_values(values: pa.Array) -> list[object]:
    """Values as Arrow's `to_pylist` gives them; dates and times as numbers of days or microseconds
    since the epoch if one is outside the years of Python, 1 to 9999.
    """
    is_instant = pa.types.is_timestamp(values.type) and values.type.tz is not None
    try:
        if is_instant:
            # Of a time with a zone, Arrow looks whether pandas has a type.
            found = pc.cast(values, pa.timestamp("us")).to_pylist()
            return [None if value is None else value.replace(tzinfo=dt.UTC) for value in found]
        return list(values.to_pylist())
    except (ValueError, OverflowError):
        width = pa.int32() if values.type.bit_width == 32 else pa.int64()
        return list(pc.cast(values, width).to_pylist())


def check_partition_type(data_type: DataType, *, column: str | None = None) -> None:
    """Refuse a column type that cannot partition a table."""
    match data_type:
        case PrimitiveType(name) if name not in _UNPARTITIONABLE and not data_type.is_read_only:
            return
        case PrimitiveType() if data_type.interval_unit is not None:
            # delta-spark writes such tables behind a switch alone.
            raise UnsupportedFeature(
                f"the table is partitioned by a column of type {data_type}, which this library "
                "does not read: read it by delta-spark",
                column=column,
            )
        case DecimalType():
            return
    raise InvalidTable(
        f"the table is partitioned by a column of type {data_type}, by which no table can be "
        "partitioned; restore an older version of the table",
        column=column,
    )


def _describe_unparseable(
    distinct: pa.Array, data_type: DataType, column: str | None
) -> InvalidTable:
    for position in range(len(distinct)):
        try:
            _parse_distinct(distinct.slice(position, 1), data_type)
        except (pa.ArrowInvalid, ValueError):
            text = distinct[position].as_py()
            break
    where = "a partition column" if column is None else f"partition column {column}"
    return InvalidTable(
        f"the value {text!r} of {where} is not of type {data_type}: the log entry of its file is "
        "damaged; rewrite that partition with the engine that wrote it",
        column=column,
    )


def serialize_partition_value(
    value: object, data_type: DataType, *, column: str | None = None
) -> str | None:
    """The text of a partition value as Spark writes it, or None for null.

    An empty string or empty binary is null too, because its text would be read back as null. A
    timestamp without a zone is taken as UTC. Dates and times may be numbers since the epoch, see
    `python_values`.
    """
    if value is None:
        return None
    try:
        return _serialize_value(value, data_type) or None
    except (ValueError, ArithmeticError, TypeError) as error:
        where = "a partition column" if column is None else f"partition column {column}"
        raise SchemaMismatch(
            f"{value!r} cannot be written as a value of {where} of type {data_type} ({error}); "
            "change the value or partition by another column",
            column=column,
        ) from error


def _serialize_value(value: Any, data_type: DataType) -> str:  # noqa: ANN401
    match data_type:
        case DecimalType(precision, scale):
            return _serialize_decimal(value, precision, scale)
        case PrimitiveType("string"):
            return str(value)
        case PrimitiveType("boolean"):
            return "true" if value else "false"
        case PrimitiveType("byte" | "short" | "integer" | "long"):
            return str(int(value))
        case PrimitiveType("float" | "double"):
            return _serialize_float(value, data_type)
        case PrimitiveType("date"):
            return spell_day(value) if isinstance(value, int) else str(value.isoformat())
        case PrimitiveType("timestamp") if isinstance(value, int):
            return f"{spell_moment(value, 'T')}Z"
        case PrimitiveType("timestamp"):
            # With the zone, since Spark reads text without a zone in its session time zone.
            utc = value if value.tzinfo is None else value.astimezone(dt.UTC).replace(tzinfo=None)
            return f"{utc.isoformat(timespec='microseconds')}Z"
        case PrimitiveType("timestamp_ntz"):
            return _serialize_local_timestamp(value)
        case PrimitiveType("binary"):
            # Readers use the bytes of the text, so the value must be valid UTF-8.
            return bytes(value).decode()
        case _:
            raise TypeError("no table can be partitioned by this type")


def _serialize_decimal(value: Decimal | int, precision: int, scale: int) -> str:
    exact = Decimal(value)
    _sign, digits, exponent = exact.as_tuple()
    if not isinstance(exponent, int):
        raise InvalidOperation("not a finite number")
    # `abs` would round to the 28 digits of the decimal context.
    text = format(exact.copy_abs(), "f")
    whole, _, fraction = text.partition(".")
    if fraction[scale:].strip("0") or len(whole.lstrip("0")) > precision - scale or not digits:
        raise InvalidOperation("it does not fit")
    fraction = fraction[:scale].ljust(scale, "0")
    sign = "-" if exact < 0 else ""
    return f"{sign}{whole}.{fraction}" if scale else f"{sign}{whole}"


def _serialize_float(value: float, data_type: DataType) -> str:
    shortest = pc.cast(scalar_of(value, data_type), pa.string()).as_py()
    return java_number(shortest)


def java_number(shortest: str) -> str:
    """A floating-point number as Java and Spark spell it, from its shortest text: `1.0E7`,
    scientific below 10^-3 and from 10^7 on.
    """
    number = Decimal(shortest)
    if number.is_nan():
        return "NaN"
    if number.is_infinite():
        return "Infinity" if number > 0 else "-Infinity"
    sign, digit_tuple, exponent = number.normalize().as_tuple()
    digits = "".join(map(str, digit_tuple))
    point = len(digits) + int(exponent)  # digits before the decimal point
    minus = "-" if sign else ""
    if digits == "0":
        return f"{minus}0.0"
    if -2 <= point <= 7:
        padded = digits.rjust(len(digits) - min(point - 1, 0), "0").ljust(max(point, 0) + 1, "0")
        point = max(point, 1)
        return f"{minus}{padded[:point]}.{padded[point:] or '0'}"
    return f"{minus}{digits[0]}.{digits[1:] or '0'}E{point - 1}"


def _serialize_local_timestamp(value: dt.datetime | int) -> str:
    if isinstance(value, int):
        text = spell_moment(value)
    elif value.tzinfo is not None:
        raise ValueError("it has a time zone")
    else:
        text = value.isoformat(sep=" ", timespec="microseconds")
    whole, _, fraction = text.partition(".")
    return f"{whole}.{fraction.rstrip('0')}" if fraction.strip("0") else whole


def partition_directory(values: Mapping[str, str | None]) -> str:
    """The directory of a partition in Hive's layout, decoded: `day=2013-01-02/carrier=UA`.

    Readers never parse values from it; it serves people and listings.
    """
    return "/".join(
        f"{_escape_directory(name)}={_escape_directory(value) if value else HIVE_NULL}"
        for name, value in values.items()
    )


def _escape_directory(text: str) -> str:
    return "".join(
        f"%{ord(character):02X}" if character in _ESCAPED_IN_DIRECTORIES else character
        for character in text
    )


def encode_path(path: str) -> str:
    """The URI of a data file, as in `add.path`, from its path relative to the table root."""
    first, slash, rest = encode_uri(path).partition("/")
    # A colon in the first segment would be read as a scheme; later ones are legal.
    return first.replace(":", "%3A") + slash + rest


def encode_uri(uri: str) -> str:
    """A decoded absolute URI, encoded as by Hadoop's `new Path(uri).toUri().toString()`.

    delta-spark compares such texts: to its VACUUM, a file with another spelling is unreferenced.
    """
    return _ILLEGAL_IN_URIS.sub(lambda found: quote(found[0], safe=""), uri)


def decode_path(uri: str) -> str:
    """The path of an `add.path`: percent-decoded exactly once.

    Relative to the table root, or absolute with its scheme, if it has one.
    """
    if "%" not in uri:
        return uri
    try:
        return unquote(uri, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidTable(
            f"the path {uri!r} does not decode to UTF-8: the log entry is damaged; restore an "
            "older version of the table",
            file=uri,
        ) from error
