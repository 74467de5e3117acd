"""The checksum that a commit and a version checksum carry of themselves."""

from __future__ import annotations

import json
import random

import pytest

from dagster_delta.errors import CorruptLog
from dagster_delta.protocol.log.commit_file import (
    CHECKSUM_KEY,
    decode_commit,
    holds_checksum,
    with_checksum,
)
from dagster_delta.protocol.log.tail import RawCommit, decode_tail
from tests.table.logs import compacted_path

LINE = b'{"commitInfo":{"operation":"WRITE"}}'
REST = b'\n{"add":{"path":"a","size":12,"partitionValues":{"day":"3"},"modificationTime":1,"dataChange":true}}\n'
COMMIT = with_checksum(LINE, REST, depth=2)


def test_a_file_with_its_checksum_is_json_and_holds() -> None:
    assert json.loads(COMMIT.splitlines()[0])["commitInfo"].keys() == {"operation", CHECKSUM_KEY}
    assert json.loads(with_checksum(b'{"a":1}')).keys() == {"a", CHECKSUM_KEY}
    assert holds_checksum(COMMIT) is True
    assert holds_checksum(with_checksum(b'{"a":1}')) is True
    assert len(decode_commit(COMMIT, version=1).adds) == 1


def test_no_flipped_bit_goes_by_but_in_the_name_of_the_key() -> None:
    key = COMMIT.index(b',"' + CHECKSUM_KEY.encode())
    end = COMMIT.index(b"}}", key) + 2
    for position in range(len(COMMIT)):
        damaged = bytearray(COMMIT)
        damaged[position] ^= 1 << random.Random(position).randrange(8)
        # A mark that cannot be recognised says nothing: all else is as it was.
        if not key <= position < end:
            with pytest.raises(CorruptLog):
                decode_commit(bytes(damaged), version=1)


@pytest.mark.parametrize("lost", [1, 50, len(REST) - 1])
def test_a_commit_that_was_cut_is_refused(lost: int) -> None:
    with pytest.raises(CorruptLog, match=r"0001\.json"):
        decode_commit(COMMIT[:-lost], version=1)


def test_files_without_one_and_files_that_were_written_anew_are_read() -> None:
    respelled = b"\n".join(json.dumps(json.loads(line)).encode() for line in COMMIT.splitlines())
    for data in (LINE + REST, respelled.replace(b"12", b"13")):
        assert len(decode_commit(data, version=1).adds) == 1


def test_commits_that_were_put_together_are_not_held_against_the_first() -> None:
    twice = COMMIT + COMMIT
    both = RawCommit(2, compacted_path(1, 2), twice, is_compacted=True)
    assert len(decode_tail([both]).add_paths) == 2


def test_a_text_that_looks_like_one_is_none() -> None:
    text = json.dumps({"commitInfo": {"note": f',"{CHECKSUM_KEY}":1}}'}}).encode()
    assert holds_checksum(text + REST) is None
