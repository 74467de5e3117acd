"""Part `spark`: random histories of a table that this library and delta-spark change in turn.

A twin of the table is changed by delta-spark alone. After each statement, the rows, the schema and
the change data feed of both have to be the same, whoever reads them; a statement that is refused
for one has to be refused for the other. Sessions have other time zones, ANSI off, and names whose
case matters.
"""

from __future__ import annotations

import functools
import json
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_delta import DeltaTable
from dagster_delta.errors import DeltaError, UnsupportedExpression
from tests.golden.answers import rows_of
from tests.reference.jars import resolve_jars
from tests.sessions import java_is_there, server_settings
from tests.soak.part import Round, Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

STEPS = 40

VALUES = {
    "string": "concat('s', {n} % 13)",
    "bigint": "{n} * 1000003",
    "int": "cast({n} * 7 AS INT)",
    "smallint": "cast({n} % 300 AS SMALLINT)",
    "tinyint": "cast({n} % 100 AS TINYINT)",
    "float": "CASE {n} % 7 WHEN 0 THEN cast('NaN' AS FLOAT) WHEN 1 THEN cast('-Infinity' AS FLOAT) "
    "WHEN 2 THEN cast(-0.0 AS FLOAT) ELSE cast({n} / 4 AS FLOAT) END",
    "double": "CASE {n} % 7 WHEN 0 THEN double('NaN') WHEN 1 THEN double('Infinity') "
    "WHEN 2 THEN double(-0.0) ELSE double({n} / 3) END",
    "boolean": "{n} % 3 = 0",
    "binary": "cast(concat('b', {n} % 5) AS BINARY)",
    "date": "date_add(DATE '1969-12-20', cast({n} % 50 AS INT))",
    "timestamp": "timestampadd(MINUTE, cast({n} * 37 AS INT), TIMESTAMP '2024-03-30 22:00:00Z')",
    "timestamp_ntz": "timestampadd(SECOND, cast({n} * 601 AS INT), "
    "TIMESTAMP_NTZ '2024-03-31 01:00:00.000001')",
    "decimal(9,2)": "cast({n} / 8 AS DECIMAL(9,2))",
    "decimal(38,10)": "cast({n} * 12345678901.0123 AS DECIMAL(38,10))",
    "struct<a:int,b:struct<c:date,d:string>>": "named_struct('a', cast({n} AS INT), 'b', if({n} % 4 "
    "= 0, null, named_struct('c', date_add(DATE '2024-01-01', cast({n} AS INT)), 'd', 'x')))",
    "array<struct<x:timestamp>>": "array(named_struct('x', TIMESTAMP '2024-01-01 00:00:00'), null)",
    "map<string,decimal(9,2)>": "map(concat('k', {n}), cast({n} AS DECIMAL(9,2)), 'l', null)",
    "array<double>": "array(double({n}), null, double('NaN'))",
}
"""SQL for a value of each type, made of a number."""

PARTITIONS = ("string", "int", "date", "timestamp", "timestamp_ntz", "decimal(9,2)", "boolean")
UNORDERED = ("map", "struct", "array")
WIDER = {"tinyint": "smallint", "smallint": "int", "int": "bigint", "float": "double"}
WIDER |= {"date": "timestamp_ntz", "decimal(9,2)": "decimal(12,4)"}
NAMES = ("c", "Name", "ünï", "a b", "x.y", "Select", "t")
SWITCHES = (
    *("delta.enableChangeDataFeed", "delta.enableDeletionVectors", "delta.enableRowTracking"),
    *("delta.enableTypeWidening", "delta.enableInCommitTimestamps"),
)
SETTINGS = {
    "spark.sql.session.timeZone": ("UTC", "Europe/Vienna", "America/New_York", "Asia/Kolkata"),
    "spark.sql.ansi.enabled": ("true", "true", "false"),
    "spark.sql.caseSensitive": ("false", "false", "true"),
    "spark.sql.codegen.wholeStage": ("false", "true"),
}


@functools.cache
def spark_session() -> SparkSession:
    """The session of this process, with delta-spark. Raises Unavailable if there cannot be one."""
    jars, why = resolve_jars()
    if not jars or not java_is_there():
        raise Unavailable(why or "Spark needs Java")
    from dagster_delta.engines.spark.session.session import local_spark_session

    settings = server_settings(Path(tempfile.mkdtemp(prefix="soak-spark-")))
    session = local_spark_session("soak", settings, cores=2)
    # What fails is expected to.
    session.sparkContext.setLogLevel("OFF")
    return session


@dataclass(frozen=True)
class _Statement:
    kind: str
    sql: str
    """What delta-spark runs, with `{t}` for the table."""
    run: Callable[[DeltaTable, str], object]
    """The same by this library, on an engine."""


@dataclass
class _History:
    round: Round
    session: SparkSession
    statements: list[str] = field(default_factory=list)
    versions: list[tuple[int, int]] = field(default_factory=list)
    """Of the table and of its twin, after each statement."""

    def __post_init__(self) -> None:
        self.chance: random.Random = self.round.random
        self.mine, self.twin = (str(self.round.scratch / name) for name in ("table", "twin"))
        self.settings = {name: self.chance.choice(some) for name, some in SETTINGS.items()}
        for name, value in self.settings.items():
            self.session.conf.set(name, value)
        self.create()

    def create(self) -> None:
        mapping = self.chance.choice(["none", "name", "id"])
        names = self.chance.sample(NAMES if mapping != "none" else NAMES[:3], 3)
        columns = {name: self.chance.choice(list(VALUES)) for name in names}
        columns |= {"p": self.chance.choice(PARTITIONS), "id": "bigint"}
        texts = [
            f"`{name}` {kind}{' NOT NULL' if name == 'id' and self.chance.random() < 0.5 else ''}"
            for name, kind in columns.items()
        ]
        if self.chance.random() < 0.3:
            texts.append("g BIGINT GENERATED ALWAYS AS (id * 2)")
        properties = {name: self.chance.choice(["true", "false"]) for name in SWITCHES}
        properties |= {
            "delta.columnMapping.mode": mapping,
            "delta.checkpointInterval": self.chance.choice(["2", "10"]),
            "delta.dataSkippingNumIndexedCols": self.chance.choice(["-1", "1", "32"]),
            "delta.checkpointPolicy": self.chance.choice(["classic", "v2"]),
        }
        listed = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
        parts = self.chance.choice(["", "PARTITIONED BY (p)"])
        sql = (
            f"CREATE TABLE {{t}} ({', '.join(texts)}) USING delta {parts} TBLPROPERTIES ({listed})"
        )
        for uri in (self.mine, self.twin):
            self.session.sql(sql.replace("{t}", f"delta.`{uri}`"))
        self.statements += [json.dumps(self.settings), sql]
        self.versions.append((0, 0))

    def step(self) -> bool:
        """Do one statement; False if the history cannot be continued."""
        statement = self.draw()
        engine = self.chance.choice(["delta-spark", "spark", "spark", "arrow"])
        if engine == "arrow" and self.settings["spark.sql.ansi.enabled"] == "false":
            engine = "spark"
        self.round.result.operations += 1
        self.statements.append(f"-- {engine}\n{statement.sql}")
        expected = _error(lambda: self.by_delta_spark(statement, self.twin))
        if engine == "delta-spark":
            found = _error(lambda: self.by_delta_spark(statement, self.mine))
        else:
            found = _error(lambda: statement.run(DeltaTable(self.mine), engine))
            if isinstance(found, UnsupportedExpression) and engine == "arrow":
                engine = "spark"
                found = _error(lambda: statement.run(DeltaTable(self.mine), engine))
        self.round.fault(f"{statement.kind}{'' if expected is None else ' refused'}")
        if found is None and any(limit in str(expected) for limit in _REFUSED_THERE):
            return False
        if (found is None) != (expected is None):
            who, error = ("delta-spark", expected) if expected else (engine, found)
            self.fail(
                f"{statement.kind}: {who} alone refuses it: {type(error).__name__}", str(error)
            )
            return False
        return self.check(f"after {statement.kind} by {engine}")

    def by_delta_spark(self, statement: _Statement, uri: str) -> None:
        self.session.sql(statement.sql.replace("{t}", f"delta.`{uri}`")).collect()

    # What is compared

    def check(self, when: str) -> bool:
        table = DeltaTable(self.mine)
        version, twin_version = table.version(), DeltaTable(self.twin).version()
        before = self.versions[-1]
        self.versions.append((version, twin_version))
        theirs = self.load(self.twin)
        if theirs.schema != self.load(self.mine).schema:
            return self.fail(f"another schema {when}", f"{self.load(self.mine).schema}")
        ours = table.snapshot().scan()
        # Spark reads each column of a file as one that may have nulls.
        by_spark = ours.to_spark(self.session).schema.simpleString()
        if by_spark != theirs.schema.simpleString():
            return self.fail(f"another schema of the frame {when}", by_spark)
        arrow = ours.to_arrow()
        expected = rows_of(theirs.toArrow().cast(arrow.schema))
        readers: dict[str, Callable[[], pa.Table]] = {
            "the embedded engine": lambda: arrow,
            "Spark": lambda: ours.to_spark(self.session).toArrow(),
            "delta-spark": lambda: self.load(self.mine).toArrow(),
        }
        for name, read in readers.items():
            found = rows_of(read().cast(arrow.schema))
            if found != expected:
                return self.fail(f"other rows by {name} {when}", _difference(found, expected))
        return self.check_filter(when) and self.check_feed(
            table, before, (version, twin_version), when
        )

    def check_filter(self, when: str) -> bool:
        """What a scan leaves out by statistics has no row that Spark would find."""
        where = self.condition()
        scan = DeltaTable(self.mine).snapshot().scan(where=where)
        expected = self.load(self.twin).where(where).count()
        found = scan.to_spark(self.session).count()
        if found != expected:
            return self.fail(f"a filter finds other rows {when}", f"{where}: {found}, {expected}")
        return True

    def check_feed(
        self, table: DeltaTable, before: tuple[int, int], after: tuple[int, int], when: str
    ) -> bool:
        feeds = [
            DeltaTable(uri).snapshot().configuration.metadata.configuration
            for uri in (self.mine, self.twin)
        ]
        if not all(feed.get("delta.enableChangeDataFeed") == "true" for feed in feeds):
            return True
        if before[0] == after[0] or before[1] == after[1]:
            return True
        try:
            theirs = self.feed(self.twin, before[1] + 1)
        except Exception:  # noqa: BLE001 - the feed was off, or the schema has changed
            self.round.fault("feeds that delta-spark refuses")
            return True
        ours = table.changes(before[0] + 1).to_arrow()
        ours = ours.drop_columns(["_commit_version", "_commit_timestamp"])
        expected = rows_of(theirs.cast(ours.schema))
        if (found := rows_of(ours)) != expected:
            return self.fail(f"another feed {when}", _difference(found, expected))
        by_them = rows_of(self.feed(self.mine, before[0] + 1).cast(ours.schema))
        if by_them != expected:
            return self.fail(f"delta-spark has another feed {when}", _difference(by_them, expected))
        self.round.fault("feeds")
        return True

    def feed(self, uri: str, first: int) -> pa.Table:
        reader = self.session.read.format("delta").option("readChangeFeed", "true")
        frame = reader.option("startingVersion", first).load(uri)
        return frame.drop("_commit_version", "_commit_timestamp").toArrow()

    def load(self, uri: str) -> Any:
        return self.session.read.format("delta").load(uri)

    def fail(self, title: str, detail: str) -> bool:
        script = ";\n".join(self.statements)
        self.round.fail(title, f"{detail[:3000]}\n{script}", save=script.encode())
        return False

    # What is drawn

    @property
    def schema(self) -> StructType:
        return self.load(self.twin).schema

    @property
    def columns(self) -> dict[str, str]:
        return {each.name: each.dataType.simpleString() for each in self.schema}

    def named(self, column: str) -> str:
        if self.settings["spark.sql.caseSensitive"] == "false" and self.chance.random() < 0.2:
            column = column.swapcase()
        return f"`{column}`"

    def value(self, kind: str, number: str) -> str:
        if kind not in VALUES:
            return f"cast(null AS {kind})"
        text = VALUES[kind].replace("{n}", number)
        return f"if({number} % 6 = 5, null, {text})" if self.chance.random() < 0.7 else text

    def rows(self, *, key: str = "id") -> str:
        """A SELECT of new or old ids, with values of their own."""
        first, shift = self.chance.randrange(60), self.chance.randrange(50)
        count = self.chance.choice([0, 1, 5, 20])
        texts = [
            f"{self.value(kind, f'(id + {shift})')} AS `{name}`"
            for name, kind in self.columns.items()
            if name not in ("id", "g")
        ]
        return f"SELECT id AS {key}, {', '.join(texts)} FROM range({first}, {first + count}, 1, 2)"

    def condition(self, prefix: str = "") -> str:
        if self.chance.random() < 0.4:
            return f"{prefix}id % {self.chance.randint(2, 9)} = 1"
        name, kind = self.chance.choice(list(self.columns.items()))
        column = prefix + self.named(name)
        if kind.startswith(UNORDERED) or kind not in VALUES or self.chance.random() < 0.2:
            return f"{column} IS {self.chance.choice(['', 'NOT '])}NULL"
        number = f"{self.chance.randrange(60)}L"
        literal = f"({VALUES[kind].replace('{n}', number)})"
        forms = ["{c} = {v}", "{c} < {v}", "{c} >= {v}", "NOT ({c} <=> {v})", "{c} IN ({v}, null)"]
        if kind in ("date", "timestamp", "timestamp_ntz"):
            forms += [
                "day({c}) = 31",
                "{c} > '2024-03-31 03:30:00'",
                "date_trunc('DAY', {c}) < {v}",
            ]
        if kind == "timestamp":
            forms += ["hour({c}) < 12", "cast({c} AS DATE) = DATE '2024-03-31'"]
        if kind == "string":
            forms += ["{c} LIKE 's1%'", "upper({c}) = 'S3'"]
        return self.chance.choice(forms).replace("{c}", column).replace("{v}", literal)

    def assignments(self, *, source: str = "", own: str = "") -> dict[str, str]:
        found: dict[str, str] = {}
        columns = [(name, kind) for name, kind in self.columns.items() if name not in ("id", "g")]
        for name, kind in self.chance.sample(columns, min(2, len(columns))):
            old = f"{own}`{name}`"
            forms = [self.value(kind, f"({source}id + {self.chance.randrange(9)})"), "null", old]
            if source:
                forms += [f"{source}`{name}`"] * 3
            if kind in ("tinyint", "smallint", "int", "bigint", "double", "decimal(9,2)"):
                forms += [f"{old} + 1", f"{old} * 90", f"{source}id", "'7'", "1.5"]
            if kind in ("date", "timestamp", "timestamp_ntz"):
                forms += ["'2024-02-29'", "DATE '2023-10-29'", "TIMESTAMP '2023-10-29 02:30:00'"]
            if kind == "string":
                forms += [f"concat({old}, '!')", f"{source}id", "DATE '2024-01-01'"]
            found[f"`{name}`"] = self.chance.choice(forms)
        return found

    def draw(self) -> _Statement:
        kinds = {"append": 6, "delete": 4, "update": 5, "merge": 7, "alter": 6, "overwrite": 1}
        kinds |= {"replace": 2, "restore": 1, "optimize": 1}
        kind = self.chance.choices(list(kinds), list(kinds.values()))[0]
        if len(self.versions) == 1:
            kind = "append"
        drawn: _Statement = getattr(self, f"draw_{kind}")()
        return drawn

    def data(self, select: str, engine: str) -> object:
        frame = self.session.sql(select)
        if engine == "spark":
            return frame
        try:
            return frame.toArrow()
        except pa.ArrowInvalid as error:
            raise _NoDataError from error

    def listed(self) -> str:
        names = [name for name in self.columns if name not in ("id", "g")]
        return ", ".join(["id", *(f"`{name}`" for name in names)])

    def draw_append(self) -> _Statement:
        rows = self.rows()
        return _Statement(
            "append",
            f"INSERT INTO {{t}} ({self.listed()}) {rows}",
            lambda table, engine: table.append(self.data(rows, engine), engine=engine),
        )

    def draw_overwrite(self) -> _Statement:
        rows = self.rows()
        return _Statement(
            "overwrite",
            f"INSERT OVERWRITE {{t}} ({self.listed()}) {rows}",
            lambda table, engine: table.overwrite(self.data(rows, engine), engine=engine),
        )

    def draw_replace(self) -> _Statement:
        where = self.condition()
        rows = f"SELECT * FROM ({self.rows()}) WHERE {where}"
        if any(name == "g" for name in self.columns):
            return self.draw_append()
        names = ", ".join(f"`{name}`" for name in self.columns)
        return _Statement(
            "replace",
            f"INSERT INTO {{t}} REPLACE WHERE {where} SELECT {names} FROM ({rows})",
            lambda table, engine: table.overwrite(
                self.data(rows, engine), where=where, engine=engine
            ),
        )

    def draw_delete(self) -> _Statement:
        where = self.condition()
        return _Statement(
            "delete",
            f"DELETE FROM {{t}} WHERE {where}",
            lambda table, engine: table.delete(where, engine=engine),
        )

    def draw_update(self) -> _Statement:
        where, values = self.condition(), self.assignments()
        listed = ", ".join(f"{name} = {value}" for name, value in values.items())
        return _Statement(
            "update",
            f"UPDATE {{t}} SET {listed} WHERE {where}",
            lambda table, engine: table.update(values, where, engine=engine),
        )

    def draw_merge(self) -> _Statement:
        rows = self.rows()
        if self.chance.random() < 0.1:
            rows = f"{rows} UNION ALL ({rows} LIMIT 1)"
        sql, calls = [], []

        def clause(text: str, method: str, *arguments: object) -> None:
            sql.append(text)
            calls.append((method, arguments))

        if self.chance.random() < 0.5:
            where, values = self.condition("t."), self.assignments(source="s.", own="t.")
            listed = ", ".join(f"{name} = {value}" for name, value in values.items())
            clause(
                f"WHEN MATCHED AND {where} THEN UPDATE SET {listed}",
                *("when_matched_update", values, where),
            )
        if self.chance.random() < 0.4:
            where = self.condition("s.")
            if "g`" not in where and "G`" not in where:
                clause(f"WHEN MATCHED AND {where} THEN DELETE", "when_matched_delete", where)
        if self.chance.random() < 0.6 and "g" not in self.columns:
            clause("WHEN MATCHED THEN UPDATE SET *", "when_matched_update_all")
        if self.chance.random() < 0.7 and "g" not in self.columns:
            clause("WHEN NOT MATCHED THEN INSERT *", "when_not_matched_insert_all")
        if self.chance.random() < 0.3:
            where, values = self.condition("t."), self.assignments(own="t.")
            listed = ", ".join(f"{name} = {value}" for name, value in values.items())
            clause(
                f"WHEN NOT MATCHED BY SOURCE AND {where} THEN UPDATE SET {listed}",
                *("when_not_matched_by_source_update", values, where),
            )
        if not sql:
            clause("WHEN MATCHED THEN DELETE", "when_matched_delete")

        def run(table: DeltaTable, engine: str) -> object:
            merge = table.merge(
                self.data(rows, engine),
                *("s.id = t.id",),
                source_alias="s",
                target_alias="t",
                engine=engine,
            )
            for method, arguments in calls:
                merge = getattr(merge, method)(*arguments)
            return merge.execute()

        return _Statement(
            "merge",
            f"MERGE INTO {{t}} t USING ({rows}) s ON s.id = t.id {' '.join(sql)}",
            run,
        )

    def draw_alter(self) -> _Statement:
        columns = self.columns
        name, kind = self.chance.choice(list(columns.items()))
        mapped = "columnMapping" in str(self.statements[1]) and "'none'" not in self.statements[1]
        forms = [
            f"ADD COLUMN (`n{len(self.versions)}` {self.chance.choice(list(VALUES))})",
            f"ADD COLUMN (`f{len(self.versions)}` INT {self.chance.choice(['FIRST', 'AFTER id'])})",
            f"ALTER COLUMN `{name}` COMMENT 'said {len(self.versions)}'",
            f"SET TBLPROPERTIES ('{self.chance.choice(SWITCHES)}' = 'true')",
            "SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'false')",
            "ALTER COLUMN id DROP NOT NULL",
            f"ADD CONSTRAINT k{len(self.versions)} CHECK (id < {self.chance.choice([50, 90, 500])})",
        ]
        if kind in WIDER:
            forms += [f"ALTER COLUMN `{name}` TYPE {WIDER[kind]}"] * 4
        if kind.startswith("struct"):
            forms += [f"ADD COLUMN (`{name}`.z{len(self.versions)} STRING)"] * 2
        if mapped and name not in ("id", "g"):
            forms += [f"RENAME COLUMN `{name}` TO `r{len(self.versions)}`"]
            forms += [f"DROP COLUMN `{name}`"] if name != "p" and len(columns) > 3 else []
        clause = self.chance.choice(forms)
        return _Statement(
            f"alter {' '.join(clause.split()[:2])}",
            f"ALTER TABLE {{t}} {clause}",
            lambda table, _: table.alter(clause),
        )

    def draw_restore(self) -> _Statement:
        mine, twin = self.chance.choice(self.versions)

        def run(table: DeltaTable, _: str) -> object:
            return table.restore(mine)

        statement = _Statement("restore", f"RESTORE TABLE {{t}} TO VERSION AS OF {twin}", run)
        return statement if mine == twin else self.draw_append()

    def draw_optimize(self) -> _Statement:
        return _Statement("optimize", "OPTIMIZE {t}", lambda table, _: table.optimize())


_REFUSED_THERE = (
    # Here two rows of a source are refused where both would change one row.
    "DELTA_MULTIPLE_SOURCE_ROW_MATCHING_TARGET_ROW_IN_MERGE",
    "cannot translate expression to source filter",
    "does not support overwrite by expression",
    # A date widened to timestamp_ntz adds the feature here.
    "DELTA_FEATURES_REQUIRE_MANUAL_ENABLEMENT",
)
"""What delta-spark alone refuses, and why no history goes on after it."""


class _NoDataError(Exception):
    """PySpark fails to make Arrow data of its own rows."""


def _error(run: Callable[[], object]) -> Exception | None:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        run()
    except (DeltaError, PySparkException, Py4JJavaError) as error:
        return error
    return None


def _difference(found: Counter[str], expected: Counter[str]) -> str:
    return f"too many: {dict(found - expected)}\nlacking: {dict(expected - found)}"


def play_spark_round(round_: Round) -> None:
    """Play one history."""
    session = spark_session()
    before = {name: str(session.conf.get(name)) for name in SETTINGS}
    try:
        history = _History(round_, session)
        with suppress(_NoDataError):
            for _ in range(6 if round_.short else STEPS):
                if round_.is_over or not history.step():
                    return
    finally:
        for name, value in before.items():
            session.conf.set(name, value)
