"""Columns of text as columns of numbers, booleans, dates and times, in all forms that Spark reads.

Arrow converts texts in the usual form, column by column; any other text is converted in Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.schema import DataType, DecimalType, PrimitiveType
from dagster_delta.protocol.values.arrow_columns import whole_array
from dagster_delta.protocol.values.arrow_schema import to_arrow_type
from dagster_delta.sql.casts import duckdb_type
from dagster_delta.sql.text_values import TextReader, text_reader
from dagster_delta.sql.types import sql_type_name

if TYPE_CHECKING:
    from numpy.typing import NDArray


class _Form(msgspec.Struct, frozen=True):
    """A form of text that Arrow converts as Spark does, or refuses."""

    pattern: str
    """Regular expression of the texts."""
    via: pa.DataType
    """`pyarrow.DataType` that Arrow converts them to first."""
    length: int | None = None
    """Number of characters to use, from the start; None for all."""

    def convert(self, array: pa.Array) -> pa.Array:
        """The values of texts in this form. Raises ArrowInvalid."""
        texts = array if self.length is None else pc.utf8_slice_codeunits(array, 0, self.length)
        return texts.cast(self.via)


class TextConversion(msgspec.Struct, frozen=True):
    """Converts text to values of one type."""

    forms: tuple[_Form, ...]
    """The usual forms."""
    storage_type: pa.DataType
    """`pyarrow.DataType` of what `read` gives."""
    arrow_type: pa.DataType
    """`pyarrow.DataType` of the values."""
    read: TextReader
    """The value of one text as `storage_type`."""

    def convert(self, array: pa.Array) -> pa.Array:
        """The values of a `pyarrow.Array` of text."""
        values, failed = self._convert_usual_forms(array)
        if failed.any():
            raise pa.ArrowInvalid("a text has no value of the type")
        return values

    def passes(self, array: pa.Array) -> pa.BooleanArray:
        """Which texts have a value: a boolean `pyarrow.Array`."""
        return pa.array(~self._convert_usual_forms(array)[1])

    def _convert_usual_forms(self, array: pa.Array) -> tuple[pa.Array, NDArray[np.bool_]]:
        values, odd = pa.nulls(len(array), self.arrow_type), array.is_valid()
        for form in self.forms:
            if not odd.true_count:
                break
            usual = pc.match_substring_regex(array, form.pattern).fill_null(False)
            usual = pc.and_(usual, odd)
            texts = pc.if_else(usual, array, pa.scalar(None, array.type))
            try:
                values = pc.if_else(usual, form.convert(texts).cast(self.arrow_type), values)
            except pa.ArrowInvalid:
                continue
            odd = pc.and_not(odd, usual)
        failed = np.zeros(len(array), bool)
        if odd.true_count:
            texts = array.filter(odd).dictionary_encode()
            found = [
                self._read_or_none(text) for text in texts.dictionary.cast(pa.binary()).to_pylist()
            ]
            fresh = pa.array(found, self.storage_type).cast(self.arrow_type).take(texts.indices)
            values = pc.replace_with_mask(values, odd, fresh)
            failed[odd.to_numpy(zero_copy_only=False)] = fresh.is_null().to_numpy(
                zero_copy_only=False
            )
        return values, failed

    def _read_or_none(self, text: bytes) -> object:
        try:
            return self.read(text.decode())
        except (ValueError, ArithmeticError):
            return None


def text_conversion(target: DataType) -> TextConversion | None:
    """The conversion of text to an atomic type; None if the type is not supported."""
    read = text_reader(target)
    if read is None:
        return None
    found = to_arrow_type(target)
    if isinstance(target, DecimalType):
        return TextConversion((_usual_decimal(target, found),), found, found, read)
    match str(target):
        case "float" | "double":
            return TextConversion((_Form(r"^-?[0-9]+(\.[0-9]+)?$", found),), found, found, read)
        case "boolean":
            return TextConversion((_Form("^(true|false)$", found),), found, found, read)
        case "date":
            day = _Form("^[0-9]{4}-[0-9]{2}-[0-9]{2}$", found)
            day_of_time = _Form("^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T]", found, 10)
            return TextConversion((day, day_of_time), pa.int32(), found, read)
        case "timestamp" | "timestamp_ntz":
            return TextConversion(_usual_times(found), pa.int64(), found, read)
    return TextConversion((_Form(r"^-?[0-9]+$", found),), found, found, read)


def _usual_decimal(target: DecimalType, arrow_type: pa.DataType) -> _Form:
    whole, scale = target.precision - target.scale, target.scale
    fraction = rf"(\.[0-9]{{1,{scale}}})?" if scale else ""
    usual = rf"^-?[0-9]{{1,{whole}}}{fraction}$" if whole else rf"^-?0{fraction}$"
    return _Form(usual, arrow_type)


def _usual_times(arrow_type: pa.DataType) -> tuple[_Form, ...]:
    day = "^[0-9]{4}-[0-9]{2}-[0-9]{2}"
    time = r"[ T]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?"
    # A text without a zone is in UTC.
    local = _Form(f"{day}({time})?$", pa.timestamp("us"))
    if arrow_type.tz is None:
        return (local,)
    return local, _Form(f"{day}{time}(Z|[+-](0[0-9]|1[0-7]):[0-5][0-9])$", arrow_type)


_TARGETS = (
    "boolean", "byte", "short", "integer", "long", "float", "double", "date", "timestamp",
    "timestamp_ntz",
)  # fmt: skip
_MICROSECONDS = pa.timestamp("us")


def _make_reader(target: DataType) -> Callable[[pa.Array], pa.Array]:
    def read(texts: pa.Array) -> pa.Array:
        values = _convert_texts(texts, target)
        return values.cast(_MICROSECONDS) if pa.types.is_timestamp(values.type) else values

    return read


def _to_decimal_texts(texts: pa.Array, precisions: pa.Array, scales: pa.Array) -> pa.Array:
    if not len(texts):
        return pa.nulls(0, pa.string())
    target = DecimalType(precisions[0].as_py(), scales[0].as_py())
    values = _convert_texts(texts, target).to_pylist()
    return pa.array([None if value is None else format(value, "f") for value in values])


def _convert_texts(texts: pa.Array | pa.ChunkedArray, target: DataType) -> pa.Array:
    conversion = text_conversion(target)
    assert conversion is not None  # noqa: S101  of decimals, and of the types above
    try:
        return conversion.convert(whole_array(texts).cast(pa.string()))
    except pa.ArrowInvalid:
        raise InvalidArgument(f"a text is not in the form of a {sql_type_name(target)}") from None


PythonFunction: TypeAlias = tuple[str, Callable[..., pa.Array], list[str], str]
"""A function over Arrow arrays, which gets nulls too, for DuckDB: its name, what computes it, and
the DuckDB types of its parameters and result."""

FUNCTIONS_OF_TEXT: tuple[PythonFunction, ...] = (
    *(
        (f"text_to_{target}", _make_reader(target), ["VARCHAR"], duckdb_type(target))
        for target in map(PrimitiveType, _TARGETS)
    ),
    ("text_to_decimal", _to_decimal_texts, ["VARCHAR", "INTEGER", "INTEGER"], "VARCHAR"),
)
"""What the SQL of casts calls."""
