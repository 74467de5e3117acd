"""Hostile tables whose log is wrong: values, types, schemas, protocols, properties, bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.soak.hostile_draft import (
    Build,
    Draft,
    HostileTable,
    add,
    after_start,
    field,
    metadata,
    protocol,
    schema,
    started,
)

DEEP = 100_000
BIG = (2**63, 2**70, -1, 1.5, "12")


def hostile_logs() -> list[HostileTable]:
    """All of them, each with a name of its own."""
    groups = (_numbers(), _types(), _raw_commits(), _log_files(), _protocols(), _schemas(),
              _columns(), _properties(), _partitions(), _statistics())  # fmt: skip
    return [HostileTable(name, build) for group in groups for name, build in group]


Case = tuple[str, Build]


def _second(name: str, *actions: dict[str, Any] | str) -> Case:
    """A table whose second commit is hostile."""
    return name, started(*actions)


def _first(name: str, *actions: dict[str, Any] | str) -> Case:
    """A table whose only commit is hostile."""
    return name, lambda draft: draft.commit(0, *actions)


def _with_metadata(name: str, schema_: object = None, **more: object) -> Case:
    return _first(name, protocol(), metadata(schema_, **more), add())


def _numbers() -> Iterator[Case]:
    for value in BIG:
        yield _second(f"add size {value}", add("a.parquet", size=value))
        yield _second(f"add modificationTime {value}", add(modificationTime=value))
        yield _second(f"add baseRowId {value}", add(baseRowId=value, defaultRowCommitVersion=value))
        yield _second(f"txn version {value}", {"txn": {"appId": "x", "version": value}})
        removed = {"path": "b", "dataChange": True, "deletionTimestamp": value}
        yield _second(f"remove deletionTimestamp {value}", {"remove": removed})
        yield _with_metadata(f"metaData createdTime {value}", createdTime=value)
        yield _second(f"commitInfo timestamp {value}", {"commitInfo": {"timestamp": value}})
        yield _first(f"protocol version {value}", protocol(value, value), metadata(), add())
    number = "9" * 400
    yield _second("number of 400 digits", f'{{"txn":{{"appId":"x","version":{number}}}}}')
    yield _second("number 1e400", '{"txn":{"appId":"x","version":1e400}}')


def _types() -> Iterator[Case]:
    wrong: tuple[object, ...] = (None, 7, [1], {"a": {}})
    value: object
    places = [
        ("add", add, name)
        for name in ("path", "partitionValues", "size", "stats", "dataChange", "tags",
                     "deletionVector")
    ] + [
        ("metaData", metadata, name)
        for name in ("id", "format", "schemaString", "partitionColumns", "configuration")
    ]  # fmt: skip
    for kind, make, name in places:
        for value in wrong:
            action = make()
            action[kind][name] = value
            yield _second(f"{kind} {name} is {value}", action)
    for kind in ("add", "remove", "metaData", "protocol", "txn", "cdc", "domainMetadata"):
        for value in (None, [], "x", {}):
            yield _second(f"{kind} is {value!r}", {kind: value})
    domain = {"domain": "delta.rowTracking", "configuration": "{", "removed": False}
    yield _second("row tracking domain is cut", {"domainMetadata": domain})
    domain = {"domain": "delta.clustering", "configuration": '{"clusteringColumns":[[7]]}'}
    yield _second("clustering domain of a number", {"domainMetadata": domain | {"removed": False}})


def _raw_commits() -> Iterator[Case]:
    contents = {
        "empty": b"",
        "only spaces": b" " * 100_000,
        "only newlines": b"\n" * 100_000,
        "NUL bytes": bytes(400),
        "invalid UTF-8": b'{"txn":{"appId":"\xff\xfe","version":1}}',
        "byte order mark": b'\xef\xbb\xbf{"txn":{"appId":"a","version":1}}',
        "lone surrogate": b'{"txn":{"appId":"\\ud800","version":1}}',
        "lone surrogate in a path": json.dumps(add("\ud800.parquet")).encode(),
        "cut": json.dumps(add()).encode()[:-20],
        "array": b"[]",
        "number": b"7",
        "NaN": b'{"txn":{"appId":"a","version":NaN}}',
        "no action": b"{}",
        "unknown action": b'{"surprise":{"a":1}}',
        "two actions in one line": json.dumps(add() | metadata()).encode(),
        "duplicate keys": b'{"txn":{"appId":"a","version":1,"version":2}}',
        "long line": json.dumps({"commitInfo": {"x": "y" * 5_000_000}}).encode(),
        "deep array": b'{"commitInfo":{"a":' + b"[" * DEEP + b"]" * DEEP + b"}}",
        "deep array not closed": b'{"commitInfo":{"a":' + b"[" * DEEP,
        "deep object in tags": b'{"add":{"path":"a","tags":' + b'{"a":' * DEEP + b"1" + b"}" * DEEP,
        "random bytes": bytes((number * 151 + 7) % 256 for number in range(3000)),
    }
    for name, content in contents.items():
        yield f"commit: {name}", after_start(Draft.raw, f"{1:020}.json", content)
    yield _second("two protocols", protocol(), protocol(1, 3))
    yield _second("two metadata", metadata(), metadata(schema(field("b"))))
    yield _second("added twice", add(), add())
    yield _second("added and removed", add(), {"remove": {"path": "a.parquet", "dataChange": True}})
    yield _second("removed what is not there", {"remove": {"path": "no", "dataChange": True}})
    yield _first("no protocol", metadata(), add())
    yield _first("no metadata", protocol(), add())


def _log_files() -> Iterator[Case]:
    commit_1 = f"_delta_log/{1:020}.json"
    yield "empty log", lambda _: None
    yield "gap", after_start(Draft.commit, 2, add())
    yield "commit is a directory", after_start(lambda draft: (draft.root / commit_1).mkdir())
    yield "commit is a FIFO", after_start(Draft.fifo, commit_1)
    for target in ("/dev/zero", "/dev/full", "nothing", commit_1[11:]):
        yield f"commit links to {target}", after_start(Draft.link, commit_1, target)
    for number in ("9" * 20, f"{2**63 - 1:020}", f"{2**63:020}"):
        yield f"version {number}", after_start(Draft.raw, f"{number}.json", b"{}")
    for name in (f"{-1:020}.json", f"{1:019}.json", f"{1:020}.JSON", f"{1:020}.json.tmp",
                 f"{2:020}.{1:020}.compacted.json", f"{0:020}.{9:020}.compacted.json"):  # fmt: skip
        yield f"log file {name}", after_start(Draft.raw, name, b"{")
    checksums = {
        "empty": b"",
        "cut": b'{"numFiles":',
        "deep": b'{"a":' + b"[" * DEEP,
        "lying": b'{"tableSizeBytes":-5,"numFiles":-5,"numMetadata":1,"numProtocol":1}',
        "huge": b'{"tableSizeBytes":' + b"9" * 50 + b',"numFiles":1}',
        "of other types": b'{"numFiles":"x","metadata":[],"protocol":7,"allFiles":{}}',
    }
    for name, content in checksums.items():
        yield f"checksum file: {name}", after_start(Draft.raw, f"{0:020}.crc", content)
    yield "checksum file is a FIFO", after_start(Draft.fifo, f"_delta_log/{0:020}.crc")


def _protocols() -> Iterator[Case]:
    lists: dict[str, tuple[object, object]] = {
        "no lists": (None, None),
        "empty lists": ([], []),
        "unknown feature": (["surprise"], ["surprise"]),
        "null feature": ([None], [None]),
        "number as feature": ([7], [7]),
        "twice": (["deletionVectors"] * 2, ["deletionVectors"] * 2),
        "reader only": (["deletionVectors"], []),
        "writer only": ([], ["deletionVectors"]),
        "text": ("deletionVectors", "deletionVectors"),
        "100,000 features": ([f"f{n}" for n in range(DEEP)], [f"f{n}" for n in range(DEEP)]),
        "long name": (["x" * 1_000_000], ["x" * 1_000_000]),
        "catalog": (["catalogManaged"], ["catalogManaged", "inCommitTimestamp"]),
    }
    for name, (reader, writer) in lists.items():
        action = protocol(3, 7)
        action["protocol"] |= {"readerFeatures": reader, "writerFeatures": writer}
        yield _first(f"features: {name}", action, metadata(), add())
    old = protocol(1, 2, "deletionVectors")
    yield _first("features: in an old protocol", old, metadata(), add())
    yield _first(
        "protocol 2, 4 with deletion vectors", protocol(2, 4, "deletionVectors"), metadata()
    )


def _schemas() -> Iterator[Case]:
    nested: object = "long"
    for _ in range(150):
        nested = {"type": "struct", "fields": [field("a", nested)]}
    text = '{"type":"array","containsNull":true,"elementType":'
    deep = f'{{"type":"struct","fields":[{{"name":"id","nullable":true,"metadata":{{}},"type":{text * DEEP}"long"{"}" * DEEP}}}]}}'
    schemas: dict[str, object] = {
        "empty text": "",
        "not JSON": "{",
        "a type name": '"long"',
        "an array type": '{"type":"array","elementType":"long","containsNull":true}',
        "no fields": schema(),
        "fields null": '{"type":"struct","fields":null}',
        "field null": '{"type":"struct","fields":[null]}',
        "deep": deep,
        "150 levels": schema(field("id"), field("s", nested)),
        "1,000 columns": schema(field("id"), *(field(f"c{n}") for n in range(1000))),
    }
    for name, value in schemas.items():
        yield _with_metadata(f"schema: {name}", value)
    types: dict[str, object] = {
        "unknown": "surprise",
        "number": 7,
        "null": None,
        "decimal(0,0)": "decimal(0,0)",
        "decimal(39,2)": "decimal(39,2)",
        "decimal(5,9)": "decimal(5,9)",
        "decimal(-1,-1)": "decimal(-1,-1)",
        "decimal of 21 digits": f"decimal({'9' * 21},5)",
        "decimal(": "decimal(",
        "array without element": {"type": "array"},
        "map without key": {"type": "map", "valueType": "long", "valueContainsNull": True},
        "struct without fields": {"type": "struct"},
        "udt": {"type": "udt", "class": "x", "sqlType": "long"},
        "void": "void",
        "interval": "interval year to month",
        "geometry": "geometry(EPSG:4326)",
        "varchar(-1)": "varchar(-1)",
    }
    for name, type_ in types.items():
        yield _with_metadata(f"type: {name}", schema(field("id"), field("x", type_)))


def _columns() -> Iterator[Case]:
    names: dict[str, object] = {"null": None, "empty": "", "number": 7, "newline": "a\nb",
                                "NUL": "a\0b", "dots": "a.b`c", "1 MB": "x" * 1_000_000,
                                "twice": "id", "twice in other case": "ID"}  # fmt: skip
    for name, value in names.items():
        yield _with_metadata(f"column name: {name}", schema(field("id"), field(value)))
    mapping = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"}
    ids: dict[str, dict[str, object]] = {
        "missing": {},
        "negative": {"delta.columnMapping.id": -1},
        "2^40": {"delta.columnMapping.id": 2**40},
        "text": {"delta.columnMapping.id": "1"},
        "twice": {"delta.columnMapping.id": 1},
    }
    for name, more in ids.items():
        one = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "id"}
        two = more | {"delta.columnMapping.physicalName": "p2"}
        fields = schema(field("id", **one), field("b", **two))
        yield _first(
            f"column id: {name}", protocol(2, 5), metadata(fields, configuration=mapping), add()
        )
    for name in ("", "id", "../x", 7, None):  # type: ignore[assignment]
        one = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "id"}
        two = {"delta.columnMapping.id": 2, "delta.columnMapping.physicalName": name}
        fields = schema(field("id", **one), field("b", **two))
        yield _first(
            f"physical name: {name!r}",
            protocol(2, 5),
            metadata(fields, configuration=mapping),
            add(),
        )
    rules: dict[str, dict[str, object]] = {
        "generated by nonsense": {"delta.generationExpression": "((("},
        "generated deeply": {"delta.generationExpression": "(" * 5000 + "id" + ")" * 5000},
        "generated by itself": {"delta.generationExpression": "x"},
        "default of nonsense": {"CURRENT_DEFAULT": "FROM WHERE"},
        "deep default": {"CURRENT_DEFAULT": "-" * 20_000 + "1"},
        "invariant of nonsense": {"delta.invariants": "{"},
        "deep invariant": {"delta.invariants": json.dumps({"expression": {"expression": "NOT " * 5000 + "id > 0"}})},
        "identity of text": {"delta.identity.start": "x", "delta.identity.step": 0},
        "huge identity": {"delta.identity.start": 2**70, "delta.identity.step": 2**70},
    }  # fmt: skip
    for name, rule in rules.items():
        action = metadata(schema(field("id"), field("x", **rule)))
        yield _first(f"column {name}", protocol(1, 6), action, add())


def _properties() -> Iterator[Case]:
    properties: dict[str, object] = {
        "delta.checkpointInterval": "0",
        "delta.checkpointInterval ": "x",
        "delta.logRetentionDuration": "interval for ever",
        "delta.deletedFileRetentionDuration": "interval 99999999999999999999 days",
        "delta.isolationLevel": "Whatever",
        "delta.columnMapping.mode": "surprise",
        "delta.enableDeletionVectors": "maybe",
        "delta.dataSkippingNumIndexedCols": "-5",
        "delta.dataSkippingStatsColumns": "`",
        "delta.randomPrefixLength": "1000000000",
        "delta.targetFileSize": "0",
        "delta.appendOnly": None,
        "delta.constraints.c": "((",
        "delta.constraints.d": "(" * 5000 + "true" + ")" * 5000,
        "delta.constraints.e": "no_such_column > 0",
        "delta.checkpointPolicy": "v9",
        "delta.setTransactionRetentionDuration": "",
        "delta.columnMapping.maxColumnId": "9" * 40,
        "delta.rowTracking.materializedRowIdColumnName": "id",
        "delta.inCommitTimestampEnablementVersion": "x",
        "x": "y" * 3_000_000,
        "": "",
    }
    for name, value in properties.items():
        action = metadata(configuration={name: value})
        yield _first(f"property {name[:40]} = {str(value)[:20]}", protocol(1, 6), action, add())
    yield _with_metadata("format is text", format="parquet")
    yield _with_metadata("provider orc", format={"provider": "orc", "options": {}})


def _partitions() -> Iterator[Case]:
    values = {"long": "x", "date": "2020-13-45", "timestamp": "yesterday", "decimal(5,2)": "1e400",
              "boolean": "maybe", "double": "0x1p", "binary": "\\u00ff", "byte": "300",
              "timestamp_ntz": "292279-01-01 00:00:00", "string": "x" * 1_000_000}  # fmt: skip
    for type_, value in values.items():
        action = metadata(schema(field("id"), field("p", type_)), partitionColumns=["p"])
        yield _first(
            f"partition value {value[:12]} of {type_}",
            protocol(),
            action,
            add(partitionValues={"p": value}),
        )
    listed: dict[str, list[object]] = {"missing column": ["nothing"], "twice": ["id", "id"], "null": [None],
                                       "number": [7], "every column": ["id"]}  # fmt: skip
    for name, columns in listed.items():
        yield _with_metadata(f"partitioned by {name}", partitionColumns=columns)
    by_p = metadata(schema(field("id"), field("p", "string")), partitionColumns=["p"])
    for name, found in {
        "no value": {},
        "other column": {"q": "1"},
        "number": {"p": 7},
        "null": {"p": None},
    }.items():
        yield _first(f"partition with {name}", protocol(), by_p, add(partitionValues=found))


def _statistics() -> Iterator[Case]:
    texts = {
        "not JSON": "{",
        "array": "[]",
        "deep": "[" * DEEP,
        "deep values": '{"numRecords":3,"minValues":' + '{"id":' * 5000 + "1" + "}" * 5001,
        "negative count": '{"numRecords":-5}',
        "huge count": '{"numRecords":' + "9" * 40 + "}",
        "count 2^62": f'{{"numRecords":{2**62}}}',
        "fraction": '{"numRecords":1.5}',
        "text": '{"numRecords":"3"}',
        "too many": '{"numRecords":30}',
        "too few": '{"numRecords":1}',
        "text bounds": '{"numRecords":3,"minValues":{"id":"a"},"maxValues":{"id":[]}}',
        "swapped bounds": '{"numRecords":3,"minValues":{"id":9},"maxValues":{"id":-9}}',
        "huge bounds": '{"numRecords":3,"minValues":{"id":' + "9" * 40 + "}}",
        "unknown column": '{"numRecords":3,"minValues":{"zz":1},"nullCount":{"zz":{"a":1}}}',
        "negative nulls": '{"numRecords":3,"nullCount":{"id":-1}}',
        "tightBounds of text": '{"numRecords":3,"tightBounds":"x"}',
    }  # fmt: skip
    for name, text in texts.items():
        yield _second(f"statistics: {name}", add("a.parquet", stats=text))
    yield _second("two files of 2^62 rows", *(
        add(path, stats=f'{{"numRecords":{2**62}}}') for path in ("a.parquet", "b.parquet", "c.parquet")
    ))  # fmt: skip
