"""An engine as the conformance suite drives it: what it is given, and what it reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable, variants_to_json
from dagster_delta.engines.spark.session.schema import to_spark_schema
from dagster_delta.engines.spark.session.session import frame_of, functions_of, is_connect
from dagster_delta.errors import DeltaError
from dagster_delta.protocol.values.arrow_schema import from_arrow_schema, to_arrow_schema
from dagster_delta.table.read.change_data_feed import ChangeDataFeed
from dagster_delta.table.read.scan import Scan
from tests.golden.answers import rows_of
from tests.sessions import CONNECT_ONLY
from tests.table_rows import Row, row_order

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENGINES = (
    [pytest.param("connect", marks=pytest.mark.spark)]
    if CONNECT_ONLY
    else [pytest.param("arrow"), pytest.param("spark", marks=pytest.mark.spark)]
)
"""Spark Connect is tested where all sessions are of Connect, and only there."""


@dataclass(frozen=True)
class Engine:
    """One engine on one kind of session."""

    label: str
    session: SparkSession | None = None

    @property
    def name(self) -> Literal["arrow", "spark"]:
        """What `engine=` takes."""
        return "arrow" if self.session is None else "spark"

    def rows(self, data: pa.Table) -> Any:
        """The rows as this engine takes them: the value picks the engine of a write."""
        if self.session is None:
            return data
        frame = frame_of(self.session, data, to_spark_schema(from_arrow_schema(data.schema)))
        assert is_connect(frame) == (self.label == "connect")
        return frame

    def read(self, source: DeltaTable | Scan | ChangeDataFeed) -> pa.Table:
        """All rows, with the Arrow types of their Delta types whichever engine reads.

        Variants come as JSON: one value has more than one binary form.
        """
        source = source.snapshot().scan() if isinstance(source, DeltaTable) else source
        # A feed tells of rows from before a column came that may not be null any more.
        schema = pa.schema([each.with_nullable(True) for each in to_arrow_schema(source.schema)])
        variants = [each.name for each in source.schema if str(each.data_type) == "variant"]
        for name in variants:
            schema = schema.set(schema.get_field_index(name), pa.field(name, pa.string()))
        if self.session is None:
            rows = source.to_arrow()
            texts = {name: pa.array(variants_to_json(rows[name]), pa.string()) for name in variants}
            return pa.table({name: texts.get(name, rows[name]) for name in schema.names}, schema)
        frame = source.to_spark(self.session)
        assert is_connect(frame) == (self.label == "connect")
        assert frame.schema.simpleString() == to_spark_schema(source.schema).simpleString()
        for name in variants:
            frame = frame.withColumn(name, functions_of(frame).to_json(f"`{name}`"))
        return frame.toArrow().cast(schema)

    def count(self, scan: Scan) -> int:
        """How many rows a scan gives."""
        if self.session is None:
            return int(scan.to_arrow().num_rows)
        return scan.to_spark(self.session).count()

    def lazily(self, table: DeltaTable) -> Any:
        """The rows of a table as data to write, not read yet."""
        scan = table.snapshot().scan()
        return scan.to_batches() if self.session is None else scan.to_spark(self.session)

    def counted(self, source: DeltaTable | Scan | ChangeDataFeed) -> Counter[str]:
        """How often each row is there."""
        return rows_of(self.read(source))

    def tuples(
        self, table: DeltaTable, *columns: str, where: str | None = None, version: int | None = None
    ) -> list[Row]:
        """The rows of a table in an order that does not depend on its files."""
        scan = table.snapshot(version=version).scan(list(columns) or None, where)
        found = self.read(scan).to_pylist(maps_as_pydicts="strict")
        return sorted((tuple(row.values()) for row in found), key=row_order)

    def changes(self, table: DeltaTable, start: int, *columns: str) -> list[Row]:
        """The type of each change since a version, and the values of these columns, sorted."""
        rows = self.read(table.changes(start)).select(["_change_type", *columns]).to_pylist()
        return sorted((tuple(row.values()) for row in rows), key=row_order)


def files_of(table: DeltaTable) -> set[Path]:
    """The data files that lie beside the log, live or not."""
    return {each for each in Path(table.uri).rglob("*.parquet") if "_delta_log" not in each.parts}


def refusal(
    kind: type[DeltaError], text: str, table: DeltaTable, change: Callable[[], object]
) -> DeltaError:
    """The error that a change fails with, which leaves neither a version nor a file behind."""
    version, before = table.version(), files_of(table)
    with pytest.raises(kind, match=text) as caught:
        change()
    assert caught.type is kind
    assert (DeltaTable(table.uri).version(), files_of(table)) == (version, before)
    return caught.value
