"""Text as values of every atomic type: what Spark's CAST reads is read, and nothing else."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from dagster_delta.evolution.type_spelling import parse_type
from dagster_delta.sql.text_columns import TextConversion, text_conversion

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TYPES = (
    "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(10,2)", "DECIMAL(5,0)",
    "DECIMAL(3,3)", "DECIMAL(38,18)", "BOOLEAN", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ",
)  # fmt: skip

NUMBERS = (
    "0", "1", " 1 ", "\t1\n", "\x7f1\x00", "+1", "-1", "-0", "1.0", "1.5", "1.", ".5", "-.5", "1e2",
    "1E+2", "", "  ", ".", "e5", "abc", "127", "128", "-128", "-129", "32768", "2147483648",
    "9223372036854775807", "9223372036854775808", "1_000", "1,000", "1L", "1d", "1f", "1.5D",
    "NaN", "nan", "Infinity", "-inf", "+inf", "INF", "+nan", "1e400", "1e-400", "1e39", "0.05",
    "0.005", "0.0005", "1.005", "2.675", "0.9995", "0.999", "99999999.995", "99999999.994",
    "99999.5", "16777217", "0.1000000014901161193847656", "1e999999999999", "+NaN", "-NaN",
    "NaNd", "-Infinity", "Infinityd", "+-1", "1dd", "\u00a01", "\x1f1\x1f", "-0d", "1.00000005960464477539063",
    "3.4028236e38", "7.0e-46", "2.4703282292062328e-324", "0x1p3", "0x1.8p1", "0X1P3D", "0x.8p0f", "0x1.p1",
    "0x1.p", "0x.p1", "0x10", "0x1 p3", "0x1p+3", "-0x0p1", "-0x1p-1075", "0x1.8p-1075", "0x1.8p-150",
    "0x1.00000001p-150", "0x1.fffffp1023", "0x1.fffffefffp127", "0x1.ffffffp127", "0x1p1024",
    "0x1p99999999999", "-0x1p-99999999999", "0x1.000001p0", "0x1.0000010000001p0",
    "0x1.000003p0", "0x1.00000100000000000000000001p0", "0x1.00000000000008p0", "0x1.000000000000080000001p0",
    "0x123456789abcdefp0", " 99999999999999999999.999999999999999999", " 100000000000000000000",
)  # fmt: skip

BOOLEANS = ("true", "TRUE", "t", "Yes", "y", "n", "no", "f", "False", "on", "off", " true ")

DATES = (
    "2024-02-29", "2024-2-9", "2024", "2024-02", "2024-", "2023-02-29", "2024-13-01", "2024-00-01",
    "0000-01-01", "0001-01-01", "10000-01-01", "+12345-01-01", "-0001-01-01", "99999-12-31",
    "9999999-01-01", "5881580-07-11", "5881580-07-12", "294247-01-10", "1582-10-10", "999-01-01",
    "2024-02-29 ", "2024-02-29T", "2024-02-29 abc", "2024-02-29Tabc", "2024-02-29abc", "2024/02/29",
    "29.02.2024", "20240229", "2024-02-291", "epoch", "now", "2024-02x",
)  # fmt: skip

TIMES = (
    "2024-02-29 12", "2024-02-29 12:", "2024-02-29 12:34", "2024-02-29 1:2:3", "2024-02-29 24:00:00",
    "2024-02-29 23:60:00", "2024-02-29 23:59:60", "2024-02-29 00:00:00", "2024-02-29T12:34:56",
    "2024-02-29  12:34:56", "2024-02-29 12:34:56.", "2024-02-29 12:34:56.1",
    "2024-02-29 12:34:56.123456", "2024-02-29 12:34:56.1234567", "1969-12-31 23:59:59.999999",
    "2024-02-29T12:34:56Z", "2024-02-29T12:34:56+01:00", "2024-02-29T12:34:56-1:30",
    "2024-02-29T12:34:56+18:00", "2024-02-29T12:34:56+18:01", "2024-02-29T12:34:56 Europe/Berlin",
    "2024-03-31T02:30:00 Europe/Berlin", "2024-10-27T02:30:00 Europe/Berlin",
    "2024-02-29 12:34:56 UTC", "2024-02-29 12:34:56.5UTC+2", "2024-02-29 12:34:56 Nowhere/Land",
    "2024-02-29 12:34Z", "294247-01-10 04:00:54", "294247-01-10 04:00:55", "-290308-12-21 19:59:06",
)  # fmt: skip

TEXTS = (*NUMBERS, *BOOLEANS, *DATES, *TIMES)


def conversion(spelled: str) -> TextConversion:
    found = text_conversion(parse_type(spelled))
    assert found is not None
    return found


def converted(spelled: str, texts: Any) -> pa.Array:
    """The values, null where there is none."""
    array = pa.array(texts, pa.string())
    kind = conversion(spelled)
    passes = kind.passes(array).to_numpy(zero_copy_only=False)
    kept = np.where(passes, array.to_numpy(zero_copy_only=False), None)
    return kind.convert(pa.array(kept, pa.string()))


def plain(values: pa.Array) -> list[Any]:
    """Values that can be compared, and that no year is too far for."""
    if pa.types.is_date(values.type):
        values = values.cast(pa.int32())
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    return [repr(each) for each in values.to_pylist()]


@pytest.mark.classic("Spark is the judge, with the same functions on every kind of session")
def test_every_text_is_read_as_spark_reads_it(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(each,) for each in TEXTS], "v string").coalesce(1)
    casts = [f"TRY_CAST(v AS {spelled})" for spelled in TYPES]
    # Moments that Python has no year for come out as numbers.
    casts[TYPES.index("TIMESTAMP")] = "unix_micros(TRY_CAST(v AS TIMESTAMP))"
    expected = rows.selectExpr(*(f"{sql} AS c{index}" for index, sql in enumerate(casts))).toArrow()
    different = []
    for index, spelled in enumerate(TYPES):
        theirs = plain(expected[f"c{index}"].combine_chunks())
        for text, one, other in zip(TEXTS, theirs, plain(converted(spelled, TEXTS)), strict=True):
            if one != other:
                different.append(f"{text!r} as {spelled}: Spark {one}, here {other}")
    assert not different, "\n".join(different)


def test_an_odd_text_has_all_digits_of_the_widest_decimal() -> None:
    text = "+99999999999999999999.999999999999999999"
    assert converted("DECIMAL(38,18)", [text]).to_pylist() == [Decimal(text)]


def test_a_few_odd_texts_among_usual_ones_keep_their_places() -> None:
    found = converted("DATE", ["2024-01-02", None, "2024-1", "x", "2023-02-29", "2024-1"])
    assert plain(found) == ["19724", "None", "19723", "None", "None", "19723"]
    assert plain(converted("INT", [])) == []
    sliced = pa.array(["no", "7", " 8", None], pa.string()).slice(1)
    assert conversion("INT").convert(sliced).to_pylist() == [7, 8, None]


@pytest.mark.parametrize(
    ("spelled", "text"), [("INT", "1.5"), ("DATE", "x"), ("TIMESTAMP", "12:00:00")]
)
def test_a_text_without_a_value_stops_the_conversion(spelled: str, text: str) -> None:
    with pytest.raises(pa.ArrowInvalid, match="no value"):
        conversion(spelled).convert(pa.array([text]))


def test_bytes_that_are_no_text_have_no_value() -> None:
    broken = pa.array([b"\xff", b"7"], pa.binary()).view(pa.string())
    assert conversion("INT").passes(broken).to_pylist() == [False, True]
