"""Tables with variants: created, written in every way, and refused where a variant cannot be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_delta import (
    Column,
    DeltaTable,
    variants_from_json,
    variants_from_python,
    variants_to_json,
)
from dagster_delta.errors import ConstraintViolation, DeltaError, InvalidCast, SchemaMismatch
from dagster_delta.protocol.actions import Protocol
from tests.protocol.variant.variant_strategies import canonical

VARIANT_PROTOCOL = Protocol(
    min_reader_version=3,
    min_writer_version=7,
    reader_features=("variantType",),
    writer_features=("variantType",),
)


def rows(*ids: int, text: str = '{{"n": {}}}') -> pa.Table:
    texts = [text.format(each) for each in ids]
    return pa.table({"id": pa.array(ids, pa.int64()), "v": variants_from_json(texts)})


def jsons(table: DeltaTable, column: str = "v") -> dict[int, str | None]:
    found = table.snapshot().scan().to_arrow()
    return dict(zip(found["id"].to_pylist(), variants_to_json(found[column]), strict=True))


def added(table: DeltaTable) -> list[dict[str, Any]]:
    log = Path(table.uri) / "_delta_log" / f"{table.version():020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    return [each["add"] for each in actions if "add" in each]


def test_variants_that_are_written_come_back(tmp_path: Path) -> None:
    table = DeltaTable(str(tmp_path), must_exist=False)
    variants = variants_from_python([{"b": [1, None], "a": 1.5}, None, "x"])
    nested = pa.array(
        [
            {"x": None, "l": None, "m": None},
            None,
            {"x": {"metadata": b"\x11\x00\x00", "value": b"\x00"}, "l": [None], "m": [("k", None)]},
        ],
        pa.struct(
            [
                ("x", variants.type),
                ("l", pa.list_(variants.type)),
                ("m", pa.map_(pa.string(), variants.type)),
            ]
        ),
    )
    data = pa.table({"id": [1, 2, 3], "v": variants, "s": nested})
    table.append(data)
    assert table.protocol() == VARIANT_PROTOCOL
    assert str(table.schema()) == (
        "struct<id:long,v:variant,s:struct<x:variant,l:array<variant>,m:map<string,variant>>>"
    )
    found = table.snapshot().scan().to_arrow()
    assert found.to_pylist() == data.to_pylist()
    # What was read can be written on, to another table too.
    other = DeltaTable("memory://variants-of-variants", must_exist=False)
    other.append(found)
    assert other.schema() == table.schema()


def test_a_file_holds_what_readers_expect(tmp_path: Path) -> None:
    table = DeltaTable.create(str(tmp_path), [Column("id", "long"), Column("v", "variant")])
    table.append(pa.table({"id": [1, 2], "v": variants_from_json(['{"a": 1}', None])}))
    (add,) = added(table)
    # Bounds of encoded bytes would mean nothing.
    assert json.loads(add["stats"]) == {
        "numRecords": 2,
        "minValues": {"id": 1},
        "maxValues": {"id": 2},
        "nullCount": {"id": 0, "v": 1},
    }
    schema = pq.ParquetFile(tmp_path / add["path"]).schema
    leaves = [schema.column(index) for index in range(len(schema))]
    # The column may be null, its parts may not.
    assert [(each.path, each.max_definition_level) for each in leaves[1:]] == [
        ("v.value", 1),
        ("v.metadata", 1),
    ]


def test_a_column_added_later_upgrades_the_table(tmp_path: Path) -> None:
    table = DeltaTable(str(tmp_path), must_exist=False)
    table.append(pa.table({"id": [1]}))
    table.alter("ALTER TABLE t ADD COLUMN v VARIANT, w STRUCT<x: ARRAY<VARIANT>>")
    assert table.protocol().reader_features == ("variantType",)
    table.append(rows(2))
    assert jsons(table) == {1: None, 2: '{"n":2}'}


def test_a_column_of_the_data_is_added_with_merged_schemas() -> None:
    table = DeltaTable("memory://merged-variants", must_exist=False)
    table.append(pa.table({"id": [1]}))
    with pytest.raises(SchemaMismatch, match=r"the table lacks \(v\)"):
        table.append(rows(2))
    table.append(rows(2), schema_mode="merge")
    assert table.protocol().reader_features == ("variantType",)
    assert jsons(table) == {1: None, 2: '{"n":2}'}


@pytest.mark.parametrize("mode", ["none", "name", "id"])
@pytest.mark.parametrize("vectors", [False, True], ids=["copies", "vectors"])
def test_rows_with_variants_are_changed(mode: str, vectors: bool) -> None:
    properties = {
        "delta.columnMapping.mode": mode,
        "delta.enableDeletionVectors": str(vectors).lower(),
        "delta.enableChangeDataFeed": "true",
        "delta.enableRowTracking": "true",
    }
    columns = [Column("id", "long"), Column("p", "int"), Column("v", "variant")]
    uri = f"memory://changed-variants-{mode}-{vectors}"
    table = DeltaTable.create(uri, columns, partition_by=["p"], properties=properties)
    for part in (0, 1):
        data = rows(*range(part, 6, 2))
        table.append(data.append_column("p", pa.array([part] * 3, pa.int32())))
    table.update({"p": "p + 10"}, where="id = 1")
    table.update({"v": "id + 100"}, where="id = 2")
    table.delete("id = 3")
    source = rows(4, 6, text='["new {}"]').append_column("p", pa.array([0, 7], pa.int32()))
    merge = table.merge(source, on="t.id = s.id")
    merge.when_matched_update({"v": "s.v"}).when_not_matched_insert_all().execute()
    wanted = {0: '{"n":0}', 1: '{"n":1}', 2: "102", 4: '["new 4"]', 5: '{"n":5}', 6: '["new 6"]'}
    assert jsons(table) == wanted
    table.optimize()
    assert jsons(table) == wanted
    changes = table.changes(starting_version=3).to_arrow()
    texts = variants_to_json(changes["v"])
    kinds = zip(changes["id"].to_pylist(), changes["_change_type"].to_pylist(), texts, strict=True)
    assert sorted(kinds) == [
        (1, "update_postimage", '{"n":1}'),
        (1, "update_preimage", '{"n":1}'),
        (2, "update_postimage", "102"),
        (2, "update_preimage", '{"n":2}'),
        (3, "delete", '{"n":3}'),
        (4, "update_postimage", '["new 4"]'),
        (4, "update_preimage", '{"n":4}'),
        (6, "insert", '["new 6"]'),
    ]
    table.overwrite(source.slice(0, 1), where="id = 4")
    table.restore(version=1)
    assert jsons(table) == {0: '{"n":0}', 2: '{"n":2}', 4: '{"n":4}'}


def test_a_column_beside_variants_is_changed_online() -> None:
    table = DeltaTable("memory://changed-beside-variants", must_exist=False)
    table.append(rows(1, 2))
    table.change_column("id", "string", enable_features=True)
    found = table.snapshot().scan().to_arrow()
    assert found["id"].to_pylist() == ["1", "2"]
    assert variants_to_json(found["v"]) == ['{"n":1}', '{"n":2}']


def test_a_checkpoint_with_parsed_statistics_is_read() -> None:
    uri = "memory://checkpointed-variants"
    table = DeltaTable.create(
        uri,
        [Column("id", "long"), Column("v", "variant")],
        properties={"delta.checkpoint.writeStatsAsStruct": "true"},
    )
    table.append(rows(1, 2))
    table.checkpoint()
    assert jsons(DeltaTable(uri)) == {1: '{"n":1}', 2: '{"n":2}'}
    assert DeltaTable(uri).snapshot().scan(where="v IS NULL").to_arrow().num_rows == 0


@pytest.mark.parametrize("feature", ["variantType-preview", "variantShredding-preview"])
def test_a_table_goes_on_in_its_own_dialect(feature: str, tmp_path: Path) -> None:
    features = tuple(sorted({feature, "variantType-preview"}))
    table = DeltaTable.create(str(tmp_path), [Column("id", "long"), Column("v", "variant")])
    log = tmp_path / "_delta_log" / f"{0:020}.json"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        if "protocol" in line:
            line["protocol"] |= {"readerFeatures": features, "writerFeatures": features}
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for crc in log.parent.glob("*.crc"):
        crc.unlink()
    table = DeltaTable(str(tmp_path))
    table.append(rows(1))
    table.alter("ALTER TABLE t ADD COLUMN w VARIANT")
    assert table.protocol().reader_features == table.protocol().writer_features == features
    # Files without a split are allowed where others are split.
    assert pq.read_schema(tmp_path / added_paths(tmp_path)[0]).field("v").type.num_fields == 2
    assert jsons(table) == {1: '{"n":1}'}


@pytest.mark.parametrize("name", ["variantType-preview", "variantShredding-preview"])
def test_a_preview_that_is_asked_for_is_listed_as_it_is_spelled(name: str) -> None:
    uri = f"memory://asked-{name}"
    asked = {f"delta.feature.{name}": "supported"}
    table = DeltaTable.create(uri, [Column("v", "variant")], properties=asked)
    assert name in (table.protocol().reader_features or ())
    assert name.removesuffix("-preview") not in (table.protocol().writer_features or ())
    table.set_properties({f"delta.feature.{name.removesuffix('-preview')}": "supported"})
    assert name in (table.protocol().reader_features or ())
    later = DeltaTable.create(f"{uri}-later", [Column("id", "long")])
    later.set_properties(asked)
    assert name in (later.protocol().writer_features or ())


def added_paths(root: Path) -> list[str]:
    return [path.name for path in root.glob("*.parquet")]


def bad(value: bytes, metadata: bytes | None = b"\x11\x00\x00") -> pa.Array:
    good = {"value": b"\x00", "metadata": b"\x11\x00\x00"}
    return pa.array([good, None, {"value": value, "metadata": metadata}])


@pytest.mark.parametrize(
    ("data", "error", "said"),
    [
        (bad(b"\x0c"), InvalidCast, "column v cannot store the variant in row 2: 2 bytes"),
        (
            bad(b"\x0c\x01", None),
            InvalidCast,
            "row 2: its value or its dictionary of names is null",
        ),
        (bad(b"\x0c\x01", b"\x02\x00\x00"), InvalidCast, "version 2 of the encoding"),
        (pa.array([{"value": "x", "metadata": b""}]), SchemaMismatch, "v.value"),
        (pa.array([{"value": b"x"}]), SchemaMismatch, "struct<value: binary> data"),
        (pa.array([{"a": 1}]), SchemaMismatch, "column v of type variant"),
        (pa.array([[1]]), SchemaMismatch, "column v of type variant"),
    ],
)
def test_what_is_no_variant_is_refused_before_it_is_written(
    data: pa.Array, error: type[DeltaError], said: str
) -> None:
    table = DeltaTable.create("memory://no-variants", [Column("v", "variant")], mode="replace")
    with pytest.raises(error, match=said):
        table.append(pa.table({"v": data}))
    assert table.snapshot().num_files == 0


def test_the_row_of_a_malformed_variant_counts_from_the_first_batch() -> None:
    table = DeltaTable.create("memory://late-variants", [Column("v", "variant")], mode="replace")
    batches = [pa.record_batch({"v": each}) for each in (bad(b"\x00"), bad(b"\x0c"))]
    with pytest.raises(InvalidCast, match="row 5"):
        table.append(pa.Table.from_batches(batches))


def test_simple_values_are_stored_as_spark_casts_them() -> None:
    table = DeltaTable.create("memory://simple", [Column("v", "variant")], mode="replace")
    table.append(pa.table({"v": pa.array(['{"a": 1}', None])}))
    found = table.snapshot().scan().to_arrow()["v"]
    # Text is a string of the variant, and no JSON.
    assert variants_to_json(found) == ['"{\\"a\\": 1}"', None]
    assert canonical(1) != canonical(1.0)


def test_a_variant_that_may_not_be_null_is_not() -> None:
    table = DeltaTable.create(
        "memory://required", [Column("v", "variant", nullable=False)], mode="replace"
    )
    table.append(pa.table({"v": variants_from_json(["null"])}))
    with pytest.raises(ConstraintViolation, match="v"):
        table.append(pa.table({"v": variants_from_json([None])}))


REFUSED: dict[str, Callable[[DeltaTable], object]] = {
    "cannot be partitioned by v": lambda _: DeltaTable("memory://by", must_exist=False).append(
        rows(1), partition_by=["v"]
    ),
    "cannot be sorted by v: values of type variant": lambda table: table.optimize(zorder_by=["v"]),
    "clustered by column v: values of type variant": lambda t: t.alter(
        "ALTER TABLE t CLUSTER BY (v)"
    ),
    "cannot be generated": lambda _: DeltaTable.create(
        "memory://gen", [Column("s", "string"), Column("v", "variant", generated_as="s")]
    ),
    "variants cannot be compared": lambda table: table.delete("v = v"),
    "variants cannot be compared by <=>": lambda table: (
        table.merge(rows(1), on="t.v <=> s.v").when_matched_delete().execute()
    ),
    "v cannot be changed from variant to string": lambda table: table.change_column("v", "string"),
}


@pytest.mark.parametrize("said", REFUSED)
def test_where_a_variant_cannot_be_it_is_refused_by_name(said: str) -> None:
    table = DeltaTable("memory://refusing-variants", must_exist=False)
    if not DeltaTable.is_delta_table("memory://refusing-variants"):
        table.append(rows(1))
    version = table.version()
    with pytest.raises(DeltaError, match=said):
        REFUSED[said](table)
    assert table.version() == version
