"""Names of log files. Spec: Delta Log Entries; Checkpoints."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_delta.protocol.log.paths import (
    LogFileKind,
    LogFileName,
    checkpoint_path,
    checksum_path,
    commit_path,
    multi_part_checkpoint_paths,
    parse_log_file_name,
    sidecar_path,
    v2_checkpoint_path,
    version_prefix,
)
from tests.table.logs import compacted_path

VERSIONS = st.integers(0, 10**20 - 1)


def _name(path: str) -> str:
    directory, _, name = path.rpartition("/")
    assert directory == "_delta_log"
    return name


@given(VERSIONS)
def test_formed_names_parse_back(version: int) -> None:
    assert parse_log_file_name(_name(commit_path(version))) == LogFileName(
        LogFileKind.COMMIT, version, version
    )
    assert parse_log_file_name(_name(checksum_path(version))) == LogFileName(
        LogFileKind.CHECKSUM, version, version
    )
    assert parse_log_file_name(_name(checkpoint_path(version))) == LogFileName(
        LogFileKind.CHECKPOINT, version, version
    )


@given(VERSIONS, st.integers(1, 20))
def test_every_part_of_a_checkpoint_parses_back(version: int, num_parts: int) -> None:
    names = [_name(path) for path in multi_part_checkpoint_paths(version, num_parts)]
    assert [parse_log_file_name(name) for name in names] == [
        LogFileName(LogFileKind.CHECKPOINT_PART, version, version, part, num_parts)
        for part in range(1, num_parts + 1)
    ]


@given(VERSIONS, st.uuids(), st.sampled_from(["json", "parquet"]))
def test_v2_checkpoints_parse_back(version: int, unique: object, extension: str) -> None:
    name = _name(v2_checkpoint_path(version, str(unique), extension))
    assert parse_log_file_name(name) == LogFileName(LogFileKind.CHECKPOINT_V2, version, version)


@given(st.integers(0, 10**19), st.integers(1, 10**6))
def test_compacted_ranges_parse_back(start: int, length: int) -> None:
    name = _name(compacted_path(start, start + length))
    assert parse_log_file_name(name) == LogFileName(LogFileKind.COMPACTED, start, start + length)


@given(st.lists(VERSIONS, min_size=2, max_size=2))
def test_names_sort_by_version(versions: list[int]) -> None:
    low, high = sorted(versions)
    assert commit_path(low) <= commit_path(high)
    assert commit_path(low) >= f"_delta_log/{version_prefix(low)}"


@pytest.mark.parametrize(
    "name",
    [
        "_last_checkpoint",
        ".00000000000000000001.json.crc",
        "00000000000000000001.json.tmp",
        ".00000000000000000001.json.1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed.tmp",
        "00000000000000000001.1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed.json",
        "1.json",
        "000000000000000000001.json",
        "0000000000000000000a.json",
        "٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠.json",
        "00000000000000000001.checkpoint.0000000003.0000000002.parquet",
        "00000000000000000001.checkpoint.0000000000.0000000002.parquet",
        "00000000000000000001.checkpoint.parquet.crc",
        "00000000000000000001.checkpoint.json",
        "00000000000000000005.00000000000000000005.compacted.json",
        "00000000000000000005.00000000000000000004.compacted.json",
        "00000000000000000001.json\n",
        "",
    ],
)
def test_other_names_are_ignored(name: str) -> None:
    assert parse_log_file_name(name) is None


def test_sidecars_are_named_by_file_or_by_absolute_uri() -> None:
    assert sidecar_path("a.parquet") == "_delta_log/_sidecars/a.parquet"
    assert sidecar_path("s3://b/_delta_log/_sidecars/a.parquet").startswith("s3://b/")
    assert sidecar_path("file:/t/a.parquet") == "file:/t/a.parquet"
    assert sidecar_path("/t/a.parquet") == "/t/a.parquet"
