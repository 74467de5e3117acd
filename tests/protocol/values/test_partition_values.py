from __future__ import annotations

import datetime as dt
import math
import struct
from decimal import Decimal
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dagster_delta.errors import InvalidTable, SchemaMismatch, UnsupportedFeature
from dagster_delta.protocol.schema import (
    ArrayType,
    DataType,
    DecimalType,
    PrimitiveType,
    data_type_from_json,
)
from dagster_delta.protocol.values.arrow_schema import to_arrow_type
from dagster_delta.protocol.values.partition_values import (
    decode_path,
    encode_path,
    parse_partition_column,
    parse_partition_value,
    partition_directory,
    serialize_partition_value,
)
from dagster_delta.protocol.values.session_zone import zone_of_statement
from tests.protocol.schema_strategies import PARTITIONABLE_NAMES

INTEGER_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}


def of(name: str) -> DataType:
    return data_type_from_json(name)


@st.composite
def typed_values(draw: st.DrawFn) -> tuple[DataType, object]:
    name = draw(st.sampled_from(["decimal", *PARTITIONABLE_NAMES]))
    if name == "decimal":
        precision = draw(st.integers(1, 38))
        scale = draw(st.integers(0, precision))
        unscaled = draw(st.integers(-(10**precision) + 1, 10**precision - 1))
        sign, digits = int(unscaled < 0), tuple(map(int, str(abs(unscaled))))
        return DecimalType(precision, scale), Decimal((sign, digits, -scale))
    if name in INTEGER_BITS:
        bound = 2 ** (INTEGER_BITS[name] - 1)
        return PrimitiveType(name), draw(st.integers(-bound, bound - 1))
    strategies: dict[str, st.SearchStrategy[object]] = {
        "string": st.text(),
        "binary": st.text().map(str.encode),
        "boolean": st.booleans(),
        "float": st.floats(width=32),
        "double": st.floats(),
        "date": st.dates(),
        "timestamp": st.datetimes(timezones=st.just(dt.UTC)),
        "timestamp_ntz": st.datetimes(),
    }
    return PrimitiveType(name), draw(strategies[name])


@given(typed_values())
def test_written_value_is_read_back(typed: tuple[DataType, object]) -> None:
    data_type, value = typed
    text = serialize_partition_value(value, data_type)
    read = parse_partition_value(text, data_type)
    if value in ("", b""):
        assert text is None
        assert read is None
    elif isinstance(value, float):
        # Bits, so that -0.0 does not equal 0.0.
        assert isinstance(read, float)
        both_nan = math.isnan(read) and math.isnan(value)
        assert both_nan or struct.pack("<d", read) == struct.pack("<d", value)
    else:
        assert read == value


@pytest.mark.parametrize(
    ("value", "name", "text"),
    [
        ("a b=c/d%20", "string", "a b=c/d%20"),
        (b"\x01\x02\x03", "binary", "\x01\x02\x03"),
        ("é".encode(), "binary", "é"),
        (True, "boolean", "true"),
        (-5, "byte", "-5"),
        (1.0, "double", "1.0"),
        (1e-5, "double", "1.0E-5"),
        (0.001, "double", "0.001"),
        (1e7, "double", "1.0E7"),
        (9999999.5, "double", "9999999.5"),
        (1.2345678e20, "double", "1.2345678E20"),
        (-0.0, "double", "-0.0"),
        (float("nan"), "double", "NaN"),
        (float("-inf"), "double", "-Infinity"),
        (1.100000023841858, "float", "1.1"),
        (16777216.0, "float", "1.6777216E7"),
        (Decimal("-0.5"), "decimal(10,2)", "-0.50"),
        (Decimal(0), "decimal(10,2)", "0.00"),
        (Decimal("1E-18"), "decimal(38,18)", "0.000000000000000001"),
        (Decimal(7), "decimal(3,0)", "7"),
        (Decimal(10**37 + 1), "decimal(38,0)", "10000000000000000000000000000000000001"),
        (dt.date(1, 1, 1), "date", "0001-01-01"),
        (dt.datetime(2020, 1, 1, 8, 0), "timestamp_ntz", "2020-01-01 08:00:00"),
        (dt.datetime(2020, 1, 1, 8, 0, 10), "timestamp_ntz", "2020-01-01 08:00:10"),
        (dt.datetime(1, 1, 1, 8, 0, 0, 120000), "timestamp_ntz", "0001-01-01 08:00:00.12"),
        (
            dt.datetime(2020, 1, 1, 8, 0, tzinfo=dt.timezone(dt.timedelta(hours=-8))),
            "timestamp",
            "2020-01-01T16:00:00.000000Z",
        ),
        (dt.datetime(2020, 1, 1), "timestamp", "2020-01-01T00:00:00.000000Z"),
    ],
)
def test_value_is_written_as_spark_writes_it(value: object, name: str, text: str) -> None:
    assert serialize_partition_value(value, of(name)) == text


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        (None, "string", None),
        ("", "string", None),
        ("", "long", None),
        ("null", "string", "null"),
        ("😈", "binary", "😈".encode()),
        ("TRUE", "boolean", True),
        ("1", "boolean", True),
        ("007", "integer", 7),
        ("5", "decimal(12,2)", Decimal("5.00")),
        ("0E-18", "decimal(38,18)", Decimal("0E-18")),
        ("1.1", "double", 1.1),
        ("Infinity", "double", float("inf")),
        ("2021-09-08 11:11:11", "timestamp", dt.datetime(2021, 9, 8, 11, 11, 11, tzinfo=dt.UTC)),
        (
            "2020-01-01 08:09:10.001",
            "timestamp",
            dt.datetime(2020, 1, 1, 8, 9, 10, 1000, tzinfo=dt.UTC),
        ),
        (
            "2024-01-01T10:00:00.000000Z",
            "timestamp",
            dt.datetime(2024, 1, 1, 10, tzinfo=dt.UTC),
        ),
        ("2024-01-01T10:00:00+02:00", "timestamp", dt.datetime(2024, 1, 1, 8, tzinfo=dt.UTC)),
        (
            "2024-01-01 10:00:00.123456789",
            "timestamp",
            dt.datetime(2024, 1, 1, 10, 0, 0, 123456, tzinfo=dt.UTC),
        ),
        ("2024-01-01", "timestamp_ntz", dt.datetime(2024, 1, 1)),
        ("2024-01-01", "timestamp", dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),
        (
            "2013-07-05 17:01:00.123456",
            "timestamp_ntz",
            dt.datetime(2013, 7, 5, 17, 1, 0, 123456),
        ),
    ],
)
def test_text_in_any_shipped_form_is_read(text: str | None, name: str, value: object) -> None:
    assert parse_partition_value(text, of(name)) == value


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("x", "integer"),
        ("128", "byte"),
        ("1.234", "decimal(10,2)"),
        ("yes", "boolean"),
        ("2020-13-01", "date"),
        ("noon", "timestamp"),
        ("noon", "timestamp_ntz"),
        ("HIVE_DEFAULT_PARTITION", "double"),
    ],
)
def test_damaged_text_is_refused_by_column_and_value(text: str, name: str) -> None:
    values = pa.array(["", None, text])
    with pytest.raises(InvalidTable) as caught:
        parse_partition_column(values, of(name), column="day")
    assert caught.value.column == "day"
    assert repr(text) in caught.value.message


@pytest.mark.parametrize(
    "name", ["integer", "double", "boolean", "date", "timestamp", "decimal(5,2)"]
)
def test_the_hive_name_of_null_is_null_where_it_is_no_value(name: str) -> None:
    assert parse_partition_value("__HIVE_DEFAULT_PARTITION__", of(name)) is None


@pytest.mark.parametrize(("name", "kind"), [("string", str), ("binary", bytes)])
def test_the_hive_name_of_null_is_a_text_among_texts(name: str, kind: type) -> None:
    assert isinstance(parse_partition_value("__HIVE_DEFAULT_PARTITION__", of(name)), kind)


@pytest.mark.parametrize("data_type", [of("variant"), of("void"), ArrayType(of("string"))])
def test_type_that_cannot_partition_is_refused(data_type: DataType) -> None:
    with pytest.raises(InvalidTable):
        parse_partition_value("1", data_type)
    with pytest.raises(SchemaMismatch):
        serialize_partition_value("1", data_type)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (b"\xff", "binary"),
        (Decimal("1.234"), "decimal(4,2)"),
        (Decimal("123.4"), "decimal(4,2)"),
        (Decimal("NaN"), "decimal(4,2)"),
        (dt.datetime(2020, 1, 1, tzinfo=dt.UTC), "timestamp_ntz"),
    ],
)
def test_value_that_would_not_survive_is_refused(value: object, name: str) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        serialize_partition_value(value, of(name), column="p")
    assert caught.value.column == "p"


@pytest.mark.parametrize("layout", ["chunked", "dictionary", "large"])
def test_column_is_parsed_row_by_row_in_any_layout(layout: str) -> None:
    texts = ["2", None, "1", "", "2"]
    values = {
        "chunked": pa.chunked_array([texts[:2], texts[2:]], pa.string()),
        "dictionary": pa.array(texts).dictionary_encode(),
        "large": pa.array(texts, pa.large_string()),
    }[layout]
    parsed = parse_partition_column(values, of("long"))
    assert parsed.type == to_arrow_type(of("long"))
    assert parsed.to_pylist() == [2, None, 1, None, 2]


@pytest.mark.parametrize("name", [*PARTITIONABLE_NAMES, "decimal(38,18)"])
@pytest.mark.parametrize("texts", [[], [None], ["", None]])
def test_column_without_values_is_parsed(name: str, texts: list[str | None]) -> None:
    parsed = parse_partition_column(pa.array(texts, pa.string()), of(name))
    assert parsed.type == to_arrow_type(of(name))
    assert parsed.to_pylist() == [None] * len(texts)


@given(st.lists(st.one_of(st.none(), st.dates().map(str)), max_size=20))
def test_column_equals_its_values_one_by_one(texts: list[str | None]) -> None:
    parsed = parse_partition_column(pa.array(texts, pa.string()), of("date"))
    assert parsed.to_pylist() == [parse_partition_value(text, of("date")) for text in texts]


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        # As delta-spark 4.4.0 reads them in a session of Europe/Vilnius.
        ("2020-05-05 00:00:00", 1588626000000000),
        ("2020-05-04T21:00:00.000000Z", 1588626000000000),
        ("2024-01-01 00:00:00 +00:00", 1704067200000000),
        ("2024-01-01 00:00:00+02:00", 1704060000000000),
        ("2024-01-01", 1704060000000000),
        ("2024-10-27 03:30:00", 1729989000000000),
        ("2024-03-31 03:30:00", 1711848600000000),
        ("2024-01-01 00:00:00 Europe/Paris", 1704063600000000),
        ("+10000-01-01 00:00:00", 253402293600000000),
    ],
)
def test_a_timestamp_without_an_offset_is_in_the_zone_of_the_session(
    text: str, micros: int
) -> None:
    with zone_of_statement("Europe/Vilnius"):
        found = parse_partition_column(pa.array([text, None]), of("timestamp"))
    assert found.cast(pa.int64()).to_pylist() == [micros, None]


@pytest.mark.parametrize(
    ("text", "days", "spelled"),
    [
        # As delta-spark 4.4.0 reads them, and writes them.
        ("2024-1-2", 19724, "2024-01-02"),
        ("2024-01-02 10:00:00", 19724, "2024-01-02"),
        (" 2024-01-02 ", 19724, "2024-01-02"),
        ("2024", 19723, "2024-01-01"),
        ("+10000-01-01", 2932897, "+10000-01-01"),
        ("0000-01-01", -719528, "0000-01-01"),
        ("-0001-01-01", -719893, "-0001-01-01"),
    ],
)
def test_a_date_of_any_year_and_spelling_is_read_and_written(
    text: str, days: int, spelled: str
) -> None:
    assert parse_partition_column(pa.array([text]), of("date")).cast(pa.int32())[0].as_py() == days
    assert serialize_partition_value(parse_partition_value(text, of("date")), of("date")) == spelled


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("timestamp", "+10000-01-01T00:00:00.000000Z"),
        ("timestamp_ntz", "+10000-01-01 00:00:00"),
        ("timestamp_ntz", "-0001-01-01 00:00:00.5"),
    ],
)
def test_a_time_outside_the_years_of_python_is_written_as_it_is_read(name: str, text: str) -> None:
    value = parse_partition_value(text, of(name))
    assert serialize_partition_value(value, of(name)) == text


def test_directory_escapes_what_spark_escapes() -> None:
    values = {"c": "a/b=c:d", "b": None, "e": "", "a": "x\x01 é%20{}"}
    assert partition_directory(values) == (
        "c=a%2Fb%3Dc%3Ad/b=__HIVE_DEFAULT_PARTITION__/e=__HIVE_DEFAULT_PARTITION__"
        "/a=x%01 é%2520%7B}"
    )


def test_directory_of_no_partition_is_empty() -> None:
    assert partition_directory({}) == ""


@given(st.dictionaries(st.text(min_size=1), st.one_of(st.none(), st.text()), min_size=1))
def test_directory_has_one_segment_per_column(values: dict[str, str | None]) -> None:
    segments = partition_directory(values).split("/")
    assert len(segments) == len(values)
    assert not {".", ".."} & set(segments)
    assert all(segment.count("=") == 1 and "\0" not in segment for segment in segments)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_path_survives_its_uri(path: str) -> None:
    assert decode_path(encode_path(path)) == path


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        ("p=é日本😀a\u0301/x.parquet", "p=é日本😀a\u0301/x.parquet"),
        ("p=a b%2F<\u00a0\u2028\x85\x7f/x", "p=a%20b%252F%3C%C2%A0%E2%80%A8%C2%85%7F/x"),
        ("p=~!$&'()*+,;=@-._/10:30", "p=~!$&'()*+,;=@-._/10:30"),
        ("10:30/x", "10%3A30/x"),
    ],
)
def test_path_is_spelt_as_by_hadoop(path: str, uri: str) -> None:
    assert encode_path(path) == uri


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_relative_path_never_reads_as_a_scheme_or_a_query(path: str) -> None:
    assume(not path.startswith("/"))
    parts = urlsplit(encode_path(path))
    assert (parts.scheme, parts.netloc, parts.query, parts.fragment) == ("", "", "", "")


def test_path_is_decoded_exactly_once() -> None:
    assert decode_path("_2=bar+%252521/part.parquet") == "_2=bar+%2521/part.parquet"
    assert decode_path("s3://bucket/a%20b") == "s3://bucket/a b"


def test_path_that_is_not_text_is_refused() -> None:
    with pytest.raises(InvalidTable):
        decode_path("part-%ff.parquet")


@pytest.mark.parametrize(
    "table",
    ["golden__data-reader-escaped-chars", "dat__multi_partitioned", "golden__kernel-timestamp-PST"],
)
def test_paths_written_by_others_lead_to_their_files(golden_tables: Path, table: str) -> None:
    import msgspec

    root = golden_tables / table / "table"
    lines = (root / "_delta_log" / "00000000000000000000.json").read_bytes().splitlines()
    paths = [
        action["add"]["path"] for line in lines if "add" in (action := msgspec.json.decode(line))
    ]
    assert paths
    assert all((root / decode_path(path)).is_file() for path in paths)


def test_intervals_as_partition_values_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedFeature, match="interval year to month"):
        parse_partition_value("1-0", PrimitiveType("interval year to month"), column="period")
