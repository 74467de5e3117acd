"""The parsers that mutated inputs are given to, and the words their inputs are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa

from dagster_delta import DeltaTable
from dagster_delta.evolution.statement import parse_alter
from dagster_delta.protocol.actions import DeletionVectorDescriptor
from dagster_delta.protocol.checkpoint.batches import read_adds, read_removes
from dagster_delta.protocol.checkpoint.last_checkpoint import parse_last_checkpoint
from dagster_delta.protocol.checkpoint.reader import CheckpointPart
from dagster_delta.protocol.features.deletion_vectors import parse_inline, read_from_file_bytes
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA
from dagster_delta.protocol.log.version_checksum import parse_version_checksum
from dagster_delta.protocol.schema import StructType
from dagster_delta.protocol.values.arrow_schema import to_arrow_schema
from dagster_delta.sql.expressions import parse_expression
from dagster_delta.sql.skipping import possible_outcomes
from dagster_delta.storage.memory_store import MemoryStore

CORPUS = Path(__file__).with_name("corpus")
SCHEMA = StructType.from_json((CORPUS / "schema" / "all-types.json").read_text())


@dataclass(frozen=True)
class FuzzTarget:
    """A parser; only a DeltaError may leave it."""

    name: str
    """Also the directory of its seeds."""
    parse: Callable[[bytes], object]
    words: tuple[bytes, ...] = ()
    """Pieces that mutations insert."""

    def seeds(self) -> list[bytes]:
        """The inputs that mutations start from."""
        return [path.read_bytes() for path in sorted((CORPUS / self.name).iterdir())]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _commit(data: bytes) -> None:
    store = MemoryStore()
    store.put(f"_delta_log/{0:020}.json", data)
    snapshot = DeltaTable("memory://fuzz", store=store).snapshot()
    snapshot.files()
    snapshot.scan(where="id > 1").files()


def _checkpoint(data: bytes) -> None:
    part = CheckpointPart(lambda: pa.BufferReader(data), "_delta_log/checkpoint")
    part.check_footer()
    part.check_pages()
    part.read_table_actions()
    mask, _ = part.add_rows()
    read_adds(part, LIVE_FILE_SCHEMA.names, mask)
    read_removes(part)


def _vector(data: bytes) -> None:
    """One line of JSON with the descriptor, then the bytes of the file."""
    line, _, content = data.partition(b"\n")
    try:
        descriptor = msgspec.json.decode(line, type=DeletionVectorDescriptor)
    except (ValueError, RecursionError):
        return
    if descriptor.storage_type == "i":
        parse_inline(descriptor)
    else:
        read_from_file_bytes(content, descriptor)


def _schema(data: bytes) -> None:
    to_arrow_schema(StructType.from_json(_text(data)))


def _sql(data: bytes) -> None:
    expression = parse_expression(_text(data), SCHEMA)
    expression.check_filter()
    possible_outcomes(expression.typed, {}, 1)


_JSON_WORDS = (b"{", b"}", b"[", b"]", b'"', b":", b",", b"null", b"true", b"-1", b"1.5", b"1e400",
               b"9223372036854775808", b"\\ud800", b"\xff", b'{"a":', b"\n")  # fmt: skip
_ACTION_WORDS = (b'"add"', b'"remove"', b'"metaData"', b'"protocol"', b'"txn"', b'"stats"',
                 b'"deletionVector"', b'"path"', b'"size"')  # fmt: skip
_SCHEMA_WORDS = (b'"struct"', b'"array"', b'"map"', b'"decimal(38,18)"', b'"elementType"',
                 b'"fields"', b'"timestamp"', b'"variant"', b'"metadata"')  # fmt: skip
_SQL_WORDS = (b"(", b")", b"NOT ", b"-", b" AND ", b" OR ", b"CASE WHEN ", b" THEN ", b" END", b"'",
              b"`", b"CAST(", b" AS INT)", b" IN (", b" BETWEEN ", b" LIKE ", b"INTERVAL ", b"DATE '",
              b"1e999", b"BD", b".", b"/*", b"--", b"id", b"s.a", b"concat(", b"||", b" IS NULL",
              b"0x", b"\\", b"TIMESTAMP '9999-12-31'", b"99999999999999999999")  # fmt: skip
_ALTER_WORDS = (b"ADD COLUMN ", b"DROP COLUMN ", b"RENAME COLUMN ", b" TO ", b"ALTER COLUMN ",
                b" TYPE ", b" SET ", b"DEFAULT ", b"COMMENT '", b" AFTER ", b" FIRST", b"STRUCT<",
                b"ARRAY<", b"DECIMAL(", b">", b"TBLPROPERTIES (", b"CHECK (", b",")  # fmt: skip

TARGETS = {
    target.name: target
    for target in (
        FuzzTarget("commit", _commit, _JSON_WORDS + _ACTION_WORDS),
        FuzzTarget("checkpoint", _checkpoint),
        FuzzTarget(
            "vector", _vector, (b'"sizeInBytes":', b'"offset":', b'"i"', b"-1", b"\x00" * 8)
        ),
        FuzzTarget("schema", _schema, _JSON_WORDS + _SCHEMA_WORDS),
        FuzzTarget("sql", _sql, _SQL_WORDS),
        FuzzTarget("alter", lambda data: parse_alter(_text(data)), _SQL_WORDS + _ALTER_WORDS),
        FuzzTarget("last_checkpoint", parse_last_checkpoint, _JSON_WORDS),
        FuzzTarget("checksum", parse_version_checksum, _JSON_WORDS),
    )
}
