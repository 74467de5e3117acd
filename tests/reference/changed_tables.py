"""Tables that delta-spark makes once and changes once, for all who change copies of them."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta import DeltaTable
from tests.golden.answers import rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = (
    "id BIGINT, v STRING, n INT, price DECIMAL(10,2), at TIMESTAMP_NTZ, day DATE, "
    "s STRUCT<a: INT, b: STRING>, xs ARRAY<INT>, p INT"
)
SELECT = """SELECT id, concat('v', id), cast(id % 11 AS INT), cast(id / 4 AS DECIMAL(10,2)),
    timestampadd(MINUTE, cast(id AS INT), TIMESTAMP_NTZ '2024-01-01 00:00:00'),
    date_add(DATE '2024-01-01', cast(id % 40 AS INT)),
    if(id % 7 = 0, null, named_struct('a', cast(id AS INT), 'b', concat('b', id))),
    if(id % 5 = 0, null, array(cast(id AS INT), null)),
    if(id % 4 = 3, null, cast(id % 4 AS INT))"""

SHAPES: dict[str, tuple[str, dict[str, str]]] = {
    "plain": ("", {}),
    "partitioned": ("PARTITIONED BY (p)", {}),
    "mapped_by_name": ("PARTITIONED BY (p)", {"delta.columnMapping.mode": "name"}),
    "mapped_by_id": ("PARTITIONED BY (p)", {"delta.columnMapping.mode": "id"}),
    "widened": ("PARTITIONED BY (p)", {"delta.enableTypeWidening": "true"}),
    "vectors": ("", {"delta.enableDeletionVectors": "true"}),
    "partitioned_vectors": ("PARTITIONED BY (p)", {"delta.enableDeletionVectors": "true"}),
    "mapped_vectors": (
        "PARTITIONED BY (p)",
        {"delta.enableDeletionVectors": "true", "delta.columnMapping.mode": "name"},
    ),
    "widened_vectors": (
        "",
        {"delta.enableDeletionVectors": "true", "delta.enableTypeWidening": "true"},
    ),
}
BEYOND_DELTALAKE = {
    "mapped_by_id": "deltalake refuses column mapping by id",
    "widened": "deltalake reads no widened tables",
    "widened_vectors": "deltalake reads no widened tables",
}

ENGINES = ("arrow", "spark")

Statement = tuple[str, Callable[["SparkSession", str], object]]
"""Its name, and what delta-spark does to the table at a location."""


def build(session: SparkSession, uri: str, shape: str, *, feed: bool) -> None:
    """Two commits of two files by delta-spark, one of them from before the widening."""
    clause, properties = SHAPES[shape]
    properties = {
        "delta.enableDeletionVectors": "false",
        **properties,
        "delta.enableChangeDataFeed": str(feed).lower(),
    }
    texts = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    columns = COLUMNS.replace("n INT", "n SMALLINT") if "widened" in shape else COLUMNS
    session.sql(
        f"CREATE TABLE delta.`{uri}` ({columns}) USING delta {clause} TBLPROPERTIES ({texts})"
    )
    session.sql(f"INSERT INTO delta.`{uri}` {SELECT} FROM range(0, 60, 1, 1)")
    if "widened" in shape:
        session.sql(f"ALTER TABLE delta.`{uri}` ALTER COLUMN n TYPE INT")
    session.sql(f"INSERT INTO delta.`{uri}` {SELECT} FROM range(60, 120, 1, 1)")


@dataclass(frozen=True)
class ChangedTable:
    """A table that delta-spark has changed, statement by statement."""

    uri: str
    versions: dict[str, int]
    """The version after each statement."""

    @property
    def first(self) -> int:
        """The first version that a statement made."""
        return min(self.versions.values())

    def rows(self, name: str) -> Counter[str]:
        """The rows after a statement."""
        snapshot = DeltaTable(self.uri).snapshot(version=self.versions[name])
        return rows_of(snapshot.scan().to_arrow())


@dataclass
class TableShop:
    """Makes each table once, and each change of it by delta-spark once."""

    session: SparkSession
    root: Path
    _changed: dict[tuple[str, str], ChangedTable] = field(default_factory=dict)
    _feeds: dict[str, Counter[str]] = field(default_factory=dict)

    def copy(self, shape: str, target: Path, *, feed: bool = True) -> str:
        """A table of a shape that nobody has changed yet, at a location of one's own."""
        made = self.root / shape
        if not made.exists():
            with for_few_rows(self.session):
                build(self.session, str(made), shape, feed=True)
        shutil.copytree(made, target)
        if not feed:
            DeltaTable(str(target)).set_properties({"delta.enableChangeDataFeed": "false"})
        return str(target)

    def changed(self, shape: str, what: str, statements: Iterable[Statement]) -> ChangedTable:
        """A table of a shape after all statements, each run by delta-spark."""
        if (shape, what) not in self._changed:
            uri = self.copy(shape, self.root / f"{shape}-{what}")
            versions = {}
            with for_few_rows(self.session):
                for name, run in statements:
                    run(self.session, uri)
                    versions[name] = DeltaTable(uri).version()
            self._changed[shape, what] = ChangedTable(uri, versions)
        return self._changed[shape, what]

    def changes(self, table: ChangedTable) -> Counter[str]:
        """The change data feed of all statements as delta-spark reads it."""
        if table.uri not in self._feeds:
            self._feeds[table.uri] = changes(self.session, table.uri, table.first)
        return self._feeds[table.uri]


@contextmanager
def for_few_rows(session: SparkSession) -> Iterator[None]:
    """Spare Spark what only pays for many rows."""
    settings = {
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
        "spark.databricks.delta.snapshotPartitions": "1",
    }
    before = {name: session.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, old)


def rows(session: SparkSession, uri: str) -> Counter[str]:
    """The rows as delta-spark reads them."""
    return rows_of(session.read.format("delta").load(uri).toArrow())


def rows_by_version(
    session: SparkSession, uri: str, versions: Iterable[int]
) -> dict[int, Counter[str]]:
    """The rows of several versions as delta-spark reads them, in one job where the schema is one."""
    frames: dict[str, list[DataFrame]] = {}
    for version in sorted(set(versions)):
        frame = session.read.format("delta").option("versionAsOf", version).load(uri)
        same = frames.setdefault(frame.schema.json(), [])
        same.append(frame.selectExpr("*", f"{version} AS _version"))
    found: dict[int, Counter[str]] = {version: Counter() for version in versions}
    for same in frames.values():
        table = reduce(lambda one, other: one.union(other), same).toArrow()
        for version in pc.unique(table["_version"]).to_pylist():
            rows = table.filter(pc.equal(table["_version"], version)).drop_columns(["_version"])
            found[version] = rows_of(rows)
    return found


def changes(session: SparkSession, uri: str, first: int) -> Counter[str]:
    """The change data feed as delta-spark reads it, with versions, from one version on."""
    reader = session.read.format("delta").option("readChangeFeed", "true")
    feed = reader.option("startingVersion", first).load(uri)
    with for_few_rows(session):
        return rows_of(feed.drop("_commit_timestamp").toArrow())


def read_by_deltalake(uri: str, version: int, columns: Sequence[str]) -> pa.Table:
    table = deltalake.DeltaTable(uri, version=version)
    query = deltalake.QueryBuilder().register("t", table)
    return pa.table(query.execute(f"SELECT {', '.join(columns)} FROM t").read_all())


def check_against(
    session: SparkSession, reference: ChangedTable, uri: str, shape: str, *, shift: int = 0
) -> None:
    """Everyone reads from our table what delta-spark made of its own: after each change, but
    delta-spark itself, which takes its time, half-way and at the end.

    Args:
        session: with delta-spark.
        reference: what delta-spark did.
        uri: of our table, after the same changes.
        shape: of both.
        shift: commits that our table has besides.
    """
    ours = {name: version + shift for name, version in reference.versions.items()}
    assert DeltaTable(uri).version() == max(ours.values())
    versions = sorted(set(ours.values()))
    with for_few_rows(session):
        found = rows_by_version(session, uri, {versions[len(versions) // 2], versions[-1]})
    for name, version in ours.items():
        expected = reference.rows(name)
        assert found.get(version, expected) == expected, name
        snapshot = DeltaTable(uri).snapshot(version=version)
        assert rows_of(snapshot.scan().to_arrow()) == expected, name
        assert snapshot.num_records == sum(expected.values()), name
        if shape not in BEYOND_DELTALAKE:
            read = read_by_deltalake(uri, version, ["id", "v"])
            theirs = DeltaTable(reference.uri).snapshot(version=reference.versions[name])
            table = theirs.scan(columns=["id", "v"]).to_arrow()
            assert rows_of(read) == rows_of(table.cast(read.schema)), name
