"""Hostile tables whose files are wrong: paths, data files, deletion vectors, checkpoints."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_delta.protocol.features.deletion_vectors import encode_z85
from tests.soak.hostile_draft import (
    Build,
    Draft,
    HostileTable,
    add,
    after_start,
    dv_bytes,
    field,
    metadata,
    protocol,
    schema,
    started,
)

Case = tuple[str, Build]


def hostile_files() -> list[HostileTable]:
    """All of them, each with a name of its own."""
    groups = (_paths(), _special_files(), _data_files(), _bombs(), _inline_vectors(),
              _vector_files(), _checkpoints(), _last_checkpoints())  # fmt: skip
    return [HostileTable(name, build) for group in groups for name, build in group]


def _paths() -> Iterator[Case]:
    paths = {
        "parent": "../outside/victim.parquet",
        "encoded parent": "%2e%2e/outside/victim.parquet",
        "encoded slash": "..%2Foutside%2Fvictim.parquet",
        "parent within": "x/../../outside/victim.parquet",
        "of a table beside": "../outside/_delta_log/00000000000000000000.json",
        "empty": "",
        "dot": ".",
        "the log": "_delta_log/00000000000000000000.json",
        "double slash": "//a.parquet",
        "trailing slash": "a.parquet/",
        "NUL": "a%00.parquet",
        "invalid escape": "a%zz.parquet",
        "cut escape": "a.parquet%",
        "newline": "a\n.parquet",
        "backslash": "..\\outside\\victim.parquet",
        "drive": "C:\\victim.parquet",
        "5,000 characters": "x" * 5000,
        "5,000 directories": "d/" * 5000 + "a.parquet",
        "unknown scheme": "surprise://x/y.parquet",
        "http": "http://127.0.0.1:9/x.parquet",
        "memory": "memory://other/x.parquet",
        "remote file": "file://somewhere/x.parquet",
        "file scheme": "file:a.parquet",
        "data": "data:,x",
        "colon": ":a.parquet",
        "device": "/dev/zero",
        "device by parent": "../../../../../../../../../dev/zero",
        "memory of the process": "/proc/self/mem",
        "terminal": "/dev/tty",
    }
    for name, path in paths.items():
        yield f"path: {name}", started(add(path))
        if "parent" in name:
            removed = {"path": path, "dataChange": True, "deletionTimestamp": 1}
            yield f"removed path: {name}", started({"remove": removed})
            cdc = {"path": path, "partitionValues": {}, "size": 1, "dataChange": False}
            yield f"change data path: {name}", started(add(), {"cdc": cdc})

    def absolute(scheme: str) -> Build:
        return lambda draft: draft.start(add(f"{scheme}{draft.outside}/victim.parquet"))

    yield "path: absolute", absolute("")
    yield "path: absolute URI", absolute("file://")
    yield "path: URI with one slash", absolute("file:")

    def removed_absolute(draft: Draft) -> None:
        path = f"{draft.outside}/victim.txt"
        draft.start({"remove": {"path": path, "dataChange": True, "deletionTimestamp": 1}})

    yield "removed path: absolute", removed_absolute


def _special_files() -> Iterator[Case]:
    def at(path: str, make: Callable[..., object], *arguments: object) -> Build:
        def build(draft: Draft) -> None:
            make(draft, *arguments)
            draft.start(add(path))

        return build

    yield "data file is a FIFO", at("f.parquet", Draft.fifo, "f.parquet")
    yield "data file is a directory", at("d", lambda draft: (draft.root / "d").mkdir())
    for target in ("/dev/zero", "/dev/null", "/dev/full", "/dev/stdin", "/proc/kmsg", "l",
                   "../outside/victim.parquet"):  # fmt: skip
        yield f"data file links to {target}", at("l", Draft.link, "l", target)
    yield "directory links outside", at("d/victim.parquet", Draft.link, "d", "../outside")
    yield "directory links to the table", at("d/a.parquet", Draft.link, "d", ".")


def _data_files() -> Iterator[Case]:
    def bytes_of(draft: Draft) -> bytes:
        return (draft.root / "a.parquet").read_bytes()

    def damaged(change: Callable[[bytes], bytes]) -> Build:
        def build(draft: Draft) -> None:
            content = change(bytes_of(draft))
            draft.file("b.parquet", content)
            draft.start(add("b.parquet", size=len(content)))

        return build

    changes: dict[str, Callable[[bytes], bytes]] = {
        "empty": lambda _: b"",
        "only magic": lambda _: b"PAR1PAR1",
        "cut": lambda data: data[: len(data) // 2],
        "without footer": lambda data: data[:-8],
        "zeros": lambda data: bytes(len(data)),
        "huge footer": lambda data: data[:-8] + b"\xff\xff\xff\x7fPAR1",
        "negative footer": lambda data: data[:-8] + b"\xff\xff\xff\xffPAR1",
        "encrypted": lambda data: data[:-4] + b"PARE",
        "text": lambda _: b"id\n1\n2\n",
    }
    for name, change in changes.items():
        yield f"data file: {name}", damaged(change)
    for seed in range(14):
        yield f"data file: flipped bits {seed}", damaged(partial(_flipped, seed=seed))
    yield "data file: missing", started(add("missing.parquet"))
    tables = {
        "text for numbers": pa.table({"id": ["a", "b"]}),
        "struct for numbers": pa.table({"id": [{"a": 1}]}),
        "list for numbers": pa.table({"id": [[1], [2]]}),
        "decimals for numbers": pa.table({"id": pa.array([1, 2], pa.decimal128(38, 0))}),
        "doubles for numbers": pa.table({"id": [1.5, float("nan")]}),
        "nulls for numbers": pa.table({"id": pa.nulls(3)}),
        "no such column": pa.table({"other": [1]}),
        "column twice": pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["id", "id"]),
        "column in other case": pa.table({"ID": [1]}),
        "no rows": pa.table({"id": pa.array([], pa.int64())}),
        "other columns as well": pa.table({"id": [1], "x": ["y"], "s": [{"id": 5}]}),
        "timestamps for numbers": pa.table({"id": pa.array([1], pa.timestamp("us"))}),
    }
    for name, table in tables.items():
        yield f"data file with {name}", partial(_with_table, table=table)


def _with_table(draft: Draft, table: pa.Table) -> None:
    draft.data("b.parquet", table)
    draft.start(add("b.parquet", stats='{"numRecords":3}'))


def _flipped(data: bytes, seed: int) -> bytes:
    chance, changed = random.Random(seed), bytearray(data)
    for _ in range(4):
        # The footer takes most of so small a file.
        changed[chance.randrange(4, len(data) - 8)] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _bombs() -> Iterator[Case]:
    """Small files that are large in memory; scaled down to what the limit of a case tells apart."""

    def bomb(table: Callable[[], pa.Table], schema_: str) -> Build:
        def build(draft: Draft) -> None:
            size = draft.data("b.parquet", table(), compression="zstd", write_statistics=False,
                              row_group_size=10_000_000)  # fmt: skip
            draft.commit(0, protocol(), metadata(schema_), add())
            draft.commit(1, add("b.parquet", size=size))

        return build

    def dictionary() -> pa.Table:
        # One entry of 16 KiB in a million rows: 16 GiB once each row has its copy.
        count = 1_000_000
        indices = pa.repeat(pa.scalar(0, pa.int32()), count)
        text = pa.DictionaryArray.from_arrays(indices, pa.array(["x" * 16_384]))
        return pa.table({"id": pa.repeat(pa.scalar(1, pa.int64()), count), "s": text})

    def zeros() -> pa.Table:
        return pa.table({"id": pa.repeat(pa.scalar(0, pa.int64()), 8_000_000)})

    yield "dictionary bomb", bomb(dictionary, schema(field("id"), field("s", "string")))
    yield "8 million zeros", bomb(zeros, schema(field("id")))


def _vector(**more: object) -> dict[str, object]:
    data = encode_z85(dv_bytes()[4:-4])
    size = len(dv_bytes()) - 8
    return {
        "storageType": "i",
        "pathOrInlineDv": data,
        "sizeInBytes": size,
        "cardinality": 1,
    } | more


def _with_vector(vector: object, **more: Any) -> Build:
    def build(draft: Draft) -> None:
        draft.commit(0, protocol(3, 7, "deletionVectors"), metadata(), add())
        draft.commit(1, add(deletionVector=vector, stats='{"numRecords":3}', **more))

    return build


def _inline_vectors() -> Iterator[Case]:
    values: dict[str, dict[str, object]] = {
        f"{name} {value}": {name: value}
        for name in ("cardinality", "sizeInBytes", "offset", "maxRowIndex")
        for value in (-1, 0, 65_536, 2**62, 2**70, "x", None)
    }
    values |= {
        "unknown storage": {"storageType": "z"},
        "empty storage": {"storageType": ""},
        "number as storage": {"storageType": 7},
        "empty data": {"pathOrInlineDv": ""},
        "not Z85": {"pathOrInlineDv": "€€€€€"},
        "odd length": {"pathOrInlineDv": "abc"},
        "spaces": {"pathOrInlineDv": " " * 20},
        "wrong magic": {"pathOrInlineDv": encode_z85(bytes(16)), "sizeInBytes": 16},
        "parent": {"storageType": "p", "pathOrInlineDv": "../outside/victim.txt"},
        "device": {"storageType": "p", "pathOrInlineDv": "/dev/zero", "offset": 1},
        "absolute URI of a device": {"storageType": "p", "pathOrInlineDv": "file:///dev/zero"},
        "short relative": {"storageType": "u", "pathOrInlineDv": "x"},
        "relative with a parent": {"storageType": "u", "pathOrInlineDv": "../" * 7 + "0" * 20},
    }
    for name, more in values.items():
        yield f"inline vector: {name}", _with_vector(_vector(**more))


def _vector_files() -> Iterator[Case]:
    def stored(content: bytes, **more: object) -> Build:
        def build(draft: Draft) -> None:
            draft.file("v.bin", content)
            vector = _vector(
                storageType="p", pathOrInlineDv=f"file://{draft.root}/v.bin", offset=1, **more
            )
            _with_vector(vector)(draft)

        return build

    good = dv_bytes()
    many = dv_bytes(range(1000, 2000))
    # 200 containers, each of which says that it is full: 13 million rows in 2 KB.
    runs = b"".join(
        (65_535).to_bytes(2, "little").join([b"\x01\x00\x00\x00", b""]) for _ in range(200)
    )
    contents = {
        "empty": b"",
        "only a version": b"\x01",
        "cut": b"\x01" + good[:-6],
        "other version": b"\x07" + good,
        "bad checksum": b"\x01" + good[:-1] + b"\x00",
        "bad magic": b"\x01" + dv_bytes(magic=7),
        "garbage bitmap": b"\x01" + dv_bytes(data=b"\xff" * 16),
        "count of 2^64 bitmaps": b"\x01" + dv_bytes(data=b"\xff" * 8),
        "truncated containers": b"\x01"
        + dv_bytes(data=b"\x01" + bytes(11) + b"\x3b\x30\xff\x00" + runs),
        "zeros": bytes(64),
    }
    for name, content in contents.items():
        yield f"vector file: {name}", stored(content, sizeInBytes=max(0, len(content) - 9))
    yield "vector file: rows beyond the file", stored(
        b"\x01" + many, sizeInBytes=len(many) - 8, cardinality=1000)  # fmt: skip
    yield "vector file: size 2^31", stored(b"\x01" + good, sizeInBytes=2**31 - 1)
    yield (
        "vector file: other cardinality",
        stored(b"\x01" + good, sizeInBytes=len(good) - 8, cardinality=2),
    )

    def fifo(draft: Draft) -> None:
        draft.fifo("v.bin")
        _with_vector(_vector(storageType="p", pathOrInlineDv=f"file://{draft.root}/v.bin"))(draft)

    yield "vector file is a FIFO", fifo


def _checkpoints() -> Iterator[Case]:
    name = f"{1:020}.checkpoint.parquet"

    def replaced(content: Callable[[Draft], bytes], file: str = name) -> Build:
        def build(draft: Draft) -> None:
            draft.start(add("a.parquet"))
            draft.raw(file, content(draft))
            draft.raw("_last_checkpoint", b'{"version":1,"size":4}')
            (draft.log / f"{0:020}.json").unlink()

        return build

    def parquet(rows: list[dict[str, object]]) -> Callable[[Draft], bytes]:
        def content(_: Draft) -> bytes:
            sink = pa.BufferOutputStream()
            pq.write_table(pa.Table.from_pylist(rows), sink)
            return sink.getvalue().to_pybytes()

        return content

    sound: list[dict[str, object]] = [{"protocol": protocol()["protocol"]}, {"metaData": {
        "id": "x", "format": {"provider": "parquet"}, "schemaString": schema(field("id")),
        "partitionColumns": []}}]  # fmt: skip

    def given(content: bytes, _: Draft) -> bytes:
        return content

    def flipped(seed: int, draft: Draft) -> bytes:
        return _flipped(parquet(sound)(draft), seed)

    yield "checkpoint: empty", replaced(lambda _: b"")
    yield "checkpoint: text", replaced(lambda _: b"PAR1 text PAR1")
    yield "checkpoint: a data file", replaced(lambda draft: (draft.root / "a.parquet").read_bytes())
    yield "checkpoint: cut", replaced(lambda draft: parquet(sound)(draft)[:-30])
    yield "checkpoint: no rows", replaced(parquet([{"protocol": None}]))
    yield (
        "checkpoint: wrong types",
        replaced(parquet([{"protocol": 7, "metaData": "x", "add": [1]}])),
    )
    yield "checkpoint: null path", replaced(parquet([*sound, {"add": {"path": None, "size": "x"}}]))
    yield (
        "checkpoint: size of text",
        replaced(parquet([*sound, {"add": {"path": "a.parquet", "size": "x"}}])),
    )
    for seed in range(8):
        yield f"checkpoint: flipped bits {seed}", replaced(partial(flipped, seed))
    yield "checkpoint: one part of a million", replaced(
        lambda _: b"", f"{1:020}.checkpoint.{1:010}.{1_000_000:010}.parquet")  # fmt: skip
    yield (
        "checkpoint: part 2 of 1",
        replaced(parquet(sound), f"{1:020}.checkpoint.{2:010}.{1:010}.parquet"),
    )
    yield "checkpoint is a FIFO", after_start(Draft.fifo, f"_delta_log/{name}")
    for label, path in {"parent": "../../outside/victim.parquet", "absolute device": "/dev/zero",
                        "missing": "nothing.parquet", "itself": f"../{name}", "empty": ""}.items():  # fmt: skip
        manifest = [protocol(3, 7, "v2Checkpoint"), sound[1], {"checkpointMetadata": {"version": 1}},
                    {"sidecar": {"path": path, "sizeInBytes": 10, "modificationTime": 1}}]  # fmt: skip
        text = "\n".join(json.dumps(action) for action in manifest).encode()
        file = f"{1:020}.checkpoint.1b5b0c5e-0000-4000-8000-000000000000.json"
        yield f"sidecar: {label}", replaced(partial(given, text), file)


def _last_checkpoints() -> Iterator[Case]:
    contents = {
        "empty": b"",
        "cut": b'{"version":',
        "array": b"[]",
        "of text": b'{"version":"x","size":"y"}',
        "negative": b'{"version":-1,"size":-1}',
        "huge": b'{"version":' + b"9" * 40 + b"}",
        "of a missing checkpoint": b'{"version":77,"size":3}',
        "parts of 2^40": b'{"version":0,"size":3,"parts":1099511627776}',
        "deep": b'{"version":0,"checkpointSchema":' + b"[" * 100_000,
        "20 MB of spaces": b" " * 20_000_000,
        "not UTF-8": b'{"version":0,"tags":{"\xff":"x"}}',
    }
    for name, content in contents.items():
        yield f"_last_checkpoint: {name}", after_start(Draft.raw, "_last_checkpoint", content)
    path = "_delta_log/_last_checkpoint"
    yield "_last_checkpoint is a FIFO", after_start(Draft.fifo, path)
    yield "_last_checkpoint is /dev/zero", after_start(Draft.link, path, "/dev/zero")
