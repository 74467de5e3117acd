"""The hint to the newest checkpoint. Spec: Last Checkpoint File; JSON checksum."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_delta.protocol.checkpoint.last_checkpoint import (
    LastCheckpoint,
    encode_last_checkpoint,
    json_checksum,
    parse_last_checkpoint,
)

# The example of the specification.
SAMPLE = (
    """{"k0":"'v 0'", "checksum": "adsaskfljadfkjadfkj", "k1":{"k2": 2, "k3": ["v3", [1, 2], """
    """{"k4": "v4", "k5": ["v5", "v6", "v7"]}]}}"""
)

UUID = "00000000-0000-0000-0000-000000000001"

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def checksum_of(canonical: str) -> str:
    return hashlib.md5(canonical.encode()).hexdigest()


def test_the_specified_example_has_the_specified_canonical_form() -> None:
    assert json_checksum(SAMPLE) == checksum_of(
        '"k0"="%27v%200%27","k1"+"k2"=2,"k1"+"k3"+0="v3","k1"+"k3"+1+0=1,"k1"+"k3"+1+1=2,'
        '"k1"+"k3"+2+"k4"="v4","k1"+"k3"+2+"k5"+0="v5","k1"+"k3"+2+"k5"+1="v6",'
        '"k1"+"k3"+2+"k5"+2="v7"'
    )
    assert json_checksum(SAMPLE) == "6a92d155a59bf2eecbd4b4ec7fd1f875"


def test_literals_and_numbers_are_their_own_canonical_form() -> None:
    text = '{"b": {"y": null, "x": "https://delta.io"}, "a": 10, "c": 3.140, "d": true}'
    assert json_checksum(text) == checksum_of(
        '"a"=10,"b"+"x"="https%3A%2F%2Fdelta.io","b"+"y"=null,"c"=3.140,"d"=true'
    )
    assert json_checksum('[null, "hi ho", 2.71]') == checksum_of('0=null,1="hi%20ho",2=2.71')


def test_only_the_checksum_at_the_top_is_left_out() -> None:
    assert json_checksum('{"k1":"v1","checksum":"x","k3":23}') == checksum_of('"k1"="v1","k3"=23')
    assert json_checksum('{"a":{"checksum":"x"}}') == checksum_of('"a"+"checksum"="x"')


def test_every_checksum_of_real_tables_holds(golden_tables: Path) -> None:
    files = sorted(golden_tables.glob("*/table/_delta_log/_last_checkpoint"))
    stated = named = 0
    for file in files:
        data = file.read_bytes()
        if not data:
            assert parse_last_checkpoint(data) is None
            continue
        value = json.loads(data)
        stated += "checksum" in value
        hint = parse_last_checkpoint(data)
        assert hint is not None
        assert hint.version == value["version"], file
        named += all((file.parent.parent / path).exists() for path in hint.paths())
    assert stated > 10
    assert named > 40


@given(
    st.builds(
        LastCheckpoint,
        version=st.integers(0, 2**63 - 1),
        size=st.none() | st.integers(0, 2**63 - 1),
        parts=st.none() | st.integers(1, 1000),
        size_bytes=st.none() | st.integers(0, 2**63 - 1),
        num_add_files=st.none() | st.integers(0, 2**63 - 1),
    ),
    st.dictionaries(st.sampled_from(["checkpointSchema", "tags", "v2Checkpoint"]), JSON_VALUES),
)
def test_what_is_written_is_read_back(hint: LastCheckpoint, extra: dict[str, object]) -> None:
    data = encode_last_checkpoint(hint)
    assert json.loads(data)["checksum"] == json_checksum(data.decode())
    found = parse_last_checkpoint(data)
    assert found is not None
    assert (found.version, found.paths()) == (hint.version, hint.paths())
    value = json.loads(data) | extra
    value["checksum"] = json_checksum(json.dumps(value))
    found = parse_last_checkpoint(json.dumps(value).encode())
    assert found is not None
    assert found.version == hint.version


V2_NAME = f"{7:020d}.checkpoint.{UUID}.parquet"


@pytest.mark.parametrize(
    "names",
    [{"tags": {"fileName": V2_NAME}}, {"v2Checkpoint": {"path": V2_NAME, "sizeInBytes": 1}}],
)
def test_a_hint_names_the_file_of_a_v2_checkpoint(names: dict[str, object]) -> None:
    hint = parse_last_checkpoint(json.dumps({"version": 7, **names}).encode())
    assert hint == LastCheckpoint(version=7).naming(f"_delta_log/{V2_NAME}")
    assert hint.paths() == (f"_delta_log/{V2_NAME}",)
    assert parse_last_checkpoint(encode_last_checkpoint(hint)) == hint


@pytest.mark.parametrize(
    "names",
    [
        {"tags": {"fileName": "../../etc/passwd"}},
        {"tags": {"fileName": V2_NAME.replace("7", "8")}},
        {"tags": [], "v2Checkpoint": 7},
        {"parts": 10**12},
        {"parts": 0},
        {"parts": "2"},
    ],
)
def test_a_name_that_is_not_of_the_checkpoint_is_ignored(names: dict[str, object]) -> None:
    hint = parse_last_checkpoint(json.dumps({"version": 7, **names}).encode())
    assert hint == LastCheckpoint(version=7)


@given(st.binary(max_size=60))
def test_damage_reads_as_absence(data: bytes) -> None:
    hint = parse_last_checkpoint(data)
    assert hint is None or hint.version >= 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "3",
        "{}",
        '{"version":"3"}',
        '{"version":-1}',
        '{"version":3.5}',
        '{"version":1}{"version":2}',
        '{"version":1,"version":2}',
        '{"version":NaN}',
        '{"version":3,"checksum":"0123456789abcdef0123456789abcdef"}',
        "[" * 100_000,
    ],
)
def test_such_a_hint_is_not_believed(text: str) -> None:
    assert parse_last_checkpoint(text.encode()) is None


@given(st.data())
def test_a_changed_value_fails_its_checksum(data: st.DataObject) -> None:
    whole = json.loads(encode_last_checkpoint(LastCheckpoint(version=3, size=7)))
    key = data.draw(st.sampled_from(["version", "size"]))
    whole[key] = data.draw(st.integers(0, 100).filter(lambda value: value != whole[key]))
    assert parse_last_checkpoint(json.dumps(whole).encode()) is None
