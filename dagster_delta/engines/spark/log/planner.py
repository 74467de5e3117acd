"""Plans reads of tables with more files than the driver should hold, on the cluster.

The checkpoint is read as Parquet, under the columns and types that each of its files has. The
actions of later commits are few, and are broadcast.

Spec: Action Reconciliation; Checkpoints; Per-file Statistics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from types import ModuleType
from typing import TYPE_CHECKING

import pyarrow as pa

from dagster_delta.cached_property import cached_property
from dagster_delta.engines.plans import LARGE_TABLE_FILES, LoggedFiles, ReadPlan
from dagster_delta.engines.spark.log.skipping import (
    LoggedStatistic,
    Truth,
    may_match,
    partition_bounds,
    statistics_bounds,
    statistics_type,
)
from dagster_delta.engines.spark.read.file_keys import is_misread_by_spark
from dagster_delta.engines.spark.read.read_tasks import FILE_SCHEMA, encode_files
from dagster_delta.engines.spark.read.reader import read_listed_files
from dagster_delta.engines.spark.read.sources import can_open, open_parquet
from dagster_delta.engines.spark.session.session import frame_of, functions_of
from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.checkpoint.columns import conform
from dagster_delta.protocol.checkpoint.reader import ADD_SOURCES, CheckpointPart
from dagster_delta.protocol.log.replay import DELETION_VECTOR_TYPE, KEY_SEPARATOR, LIVE_FILE_SCHEMA
from dagster_delta.protocol.statistics.predicates import Constant, Predicate
from dagster_delta.protocol.statistics.skipping import skipping_columns
from dagster_delta.storage.locations import scheme_of
from dagster_delta.storage.spark_uris import spark_path

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql import types as spark_types


_KEY = "__delta_key"
_MAX_BROADCAST_KEYS = 500_000

_TYPES = {
    "path": "string",
    "partition_values": "map<string,string>",
    "size_bytes": "bigint",
    "modification_time_ms": "bigint",
    "stats": "string",
    "base_row_id": "bigint",
    "default_row_commit_version": "bigint",
    "tags": "map<string,string>",
    "clustering_provider": "string",
}
"""Columns of `LIVE_FILE_SCHEMA` without the deletion vector."""

_VECTOR_FIELDS = {
    "storage_type": ("storageType", "string"),
    "path_or_inline_dv": ("pathOrInlineDv", "string"),
    "offset": ("offset", "int"),
    "size_in_bytes": ("sizeInBytes", "int"),
    "cardinality": ("cardinality", "bigint"),
}


def _checkpointed_files(
    session: SparkSession, logged: LoggedFiles, predicate: Predicate
) -> DataFrame | None:
    """The live files of the checkpoint that may match, with the columns of `LIVE_FILE_SCHEMA`.

    `predicate`: over logical paths; dropped files certainly have no match.

    Returns:
        None if the checkpoint has no file.
    """
    frames = [
        _CheckpointReader(session, logged, kind).read(predicate) for kind in _kinds(logged.parts)
    ]
    if not frames:
        return None
    files = reduce(lambda left, right: left.unionByName(right), frames)
    if logged.hidden:
        files = _without_hidden(session, files, logged.hidden)
    return files


@dataclass(frozen=True, slots=True)
class _Kind:
    """Files of a checkpoint that are read in the same way."""

    parts: tuple[CheckpointPart, ...]
    add: spark_types.StructType
    has_json: bool
    """Whether statistics are stored as text."""
    is_parsed: bool
    """Whether they are stored as columns in every file."""


def _kinds(parts: Iterable[CheckpointPart]) -> Iterator[_Kind]:
    """The files of a checkpoint by the schema that they are read under."""
    found: dict[tuple[str, bool, bool], list[CheckpointPart]] = {}
    types: dict[str, spark_types.StructType] = {}
    for part in parts:
        if part.num_adds == 0:
            continue
        add = with_parsed_statistics(add_type(part), part)
        types[add.json()] = add
        parsed = part.num_values("add", PARSED_STATISTICS, "numRecords")
        is_parsed = PARSED_STATISTICS in add.fieldNames() and parsed == part.num_adds
        has_json = part.num_values("add", "stats") != 0
        found.setdefault((add.json(), has_json, is_parsed), []).append(part)
    for (schema, has_json, is_parsed), alike in found.items():
        yield _Kind(tuple(alike), types[schema], has_json, is_parsed)


@dataclass(frozen=True)
class _CheckpointReader:
    session: SparkSession
    logged: LoggedFiles
    kind: _Kind

    def read(self, predicate: Predicate) -> DataFrame:
        """The files that may match, with the columns of `LIVE_FILE_SCHEMA`."""
        rows = self.adds()
        for condition in self.conditions(predicate):
            if condition is not True:
                rows = rows.where(self._functions.lit(False) if condition is False else condition)
        columns = [self._column(name, wanted).alias(name) for name, wanted in _TYPES.items()]
        return rows.select(*columns, self._vector().alias("deletion_vector"))

    def adds(self) -> DataFrame:
        """All adds, as stored."""
        from pyspark.sql import types

        store = self.logged.store
        rows = open_parquet(
            self.session,
            [spark_path(store.resolve_uri(part.path)) for part in self.kind.parts],
            types.StructType([types.StructField("add", self.kind.add)]),
            location=store.location,
            version=self.logged.version,
        )
        return rows.where(self._add("path").isNotNull())

    @cached_property
    def _functions(self) -> ModuleType:
        return functions_of(self.session)

    def _add(self, *path: str) -> Column:
        column: Column = self._functions.col("add")
        for name in path:
            column = column.getField(name)
        return column

    def _has(self, name: str) -> bool:
        return name in self.kind.add.fieldNames()

    def _column(self, name: str, wanted: str) -> Column:
        source = ADD_SOURCES[name]
        null = self._functions.lit(None).cast(wanted)
        found: Column = self._add(source).cast(wanted) if self._has(source) else null
        if name == "stats" and not self.kind.has_json and self._has(PARSED_STATISTICS):
            return self._functions.coalesce(found, self._spelled())
        return found

    def _spelled(self) -> Column:
        """The JSON of statistics that are stored only as columns."""
        return self._functions.to_json(
            self._add(PARSED_STATISTICS),
            {
                "ignoreNullFields": "true",
                "timeZone": "UTC",
                "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
                "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
            },
        )

    def _vector(self) -> Column:
        from pyspark.sql import types

        functions = self._functions
        found = self.kind.add["deletionVector"].dataType if self._has("deletionVector") else None
        stored = found.fieldNames() if isinstance(found, types.StructType) else []
        fields = [
            (
                self._add("deletionVector", source).cast(wanted)
                if source in stored
                else functions.lit(None).cast(wanted)
            ).alias(name)
            for name, (source, wanted) in _VECTOR_FIELDS.items()
        ]
        vector = functions.struct(*fields)
        if "storageType" not in stored:
            return functions.when(functions.lit(False), vector)
        # Some writers fill a struct of nulls where there is no vector.
        present = self._add("deletionVector", "storageType").isNotNull()
        return functions.when(present, vector)

    def conditions(self, predicate: Predicate) -> Iterator[Truth]:
        """Conditions on the adds that may match, the cheap one first."""
        configuration, functions = self.logged.configuration, self._functions
        known = {}
        if self._has("partitionValues"):
            values = self._column("partition_values", _TYPES["partition_values"])
            known = partition_bounds(predicate, configuration, values, functions)
        by_partition = may_match(predicate, known)
        yield by_partition
        columns = skipping_columns(predicate, configuration)
        if not columns or by_partition is False:
            return

        if self.kind.is_parsed or not self.kind.has_json:
            bounds = statistics_bounds(columns, self._parsed_statistic, functions)
            yield may_match(predicate, {**known, **bounds})
            return

        def with_json(json: Column) -> Truth:
            bounds = statistics_bounds(columns, partial(_spelled_statistic, json), functions)
            return may_match(predicate, {**known, **bounds})

        if isinstance(with_json(functions.lit(None)), bool):
            return
        # As the only element of an array, the JSON is parsed once; as a column, Spark would inline
        # it in the condition and parse it again for every bound.
        json = functions.from_json(self._add("stats"), statistics_type(list(columns.values())))
        yield functions.exists(functions.array(json), with_json)

    def _parsed_statistic(self, *path: str) -> LoggedStatistic | None:
        from pyspark.sql import types

        stored: spark_types.DataType = self.kind.add
        for name in (PARSED_STATISTICS, *path):
            if not isinstance(stored, types.StructType) or name not in stored.fieldNames():
                # The name in a draft of the specification.
                draft = ("nullCounts", *path[1:])
                return self._parsed_statistic(*draft) if path[0] == "nullCount" else None
            stored = stored[name].dataType
        return LoggedStatistic(self._add(PARSED_STATISTICS, *path), stored.typeName())


def _spelled_statistic(json: Column, *path: str) -> LoggedStatistic:
    for name in path:
        json = json.getField(name)
    return LoggedStatistic(json)


def _without_hidden(session: SparkSession, files: DataFrame, hidden: Sequence[str]) -> DataFrame:
    """The files that no later commit names."""
    functions = functions_of(session)
    keys = frame_of(session, pa.table({_KEY: pa.array(hidden, pa.string())}), f"{_KEY} string")
    if len(hidden) <= _MAX_BROADCAST_KEYS:
        keys = functions.broadcast(keys)
    keyed = files.withColumn(_KEY, _file_key(functions))
    return keyed.join(keys, _KEY, "left_anti").drop(_KEY)


def _file_key(functions: ModuleType) -> Column:
    """The key of a file, in the format of `file_key`."""
    path, vector = functions.col("path"), functions.col("deletion_vector")
    local = functions.regexp_replace(path, "^file:/+", "/")
    path = functions.when(path.startswith("file:/"), local).otherwise(path)
    offset = vector.getField("offset").cast("string")
    with_vector = functions.concat(
        path,
        functions.lit(KEY_SEPARATOR),
        vector.getField("storage_type"),
        vector.getField("path_or_inline_dv"),
        functions.coalesce(functions.concat(functions.lit("@"), offset), functions.lit("")),
    )
    return functions.coalesce(with_vector, path)


MAX_DRIVER_FILES = "spark.dagster_delta.maxDriverFiles"
"""Session setting: tables with more files than this in their checkpoint are planned by Spark."""
MAX_COLLECTED_FILES = "spark.dagster_delta.maxCollectedFiles"
"""Session setting: maximum number of such a table's files on the driver for one read."""

_DEFAULTS = {MAX_DRIVER_FILES: LARGE_TABLE_FILES, MAX_COLLECTED_FILES: 250_000}

_TASK_BYTES = 128 * 1024 * 1024
_TASK_FILES = 10_000
_MAX_TASKS = 100_000


@dataclass(frozen=True, slots=True)
class SparkLogPlanner:
    """Replays and prunes the log of a large table in Spark."""

    session: SparkSession

    @property
    def max_driver_files(self) -> int:
        """See `MAX_DRIVER_FILES`. Raises InvalidArgument if the setting is not a number."""
        return self._setting(MAX_DRIVER_FILES)

    def can_plan(self, logged: LoggedFiles) -> bool:
        """Whether Spark reads this checkpoint correctly."""
        location = logged.store.location
        if scheme_of(location.uri) == "memory" or any(map(has_unreadable_add, logged.parts)):
            return False
        paths = [spark_path(logged.store.resolve_uri(part.path)) for part in logged.parts]
        return not any(map(is_misread_by_spark, paths)) and can_open(
            self.session, paths[0], location=location
        )

    def find_files(self, logged: LoggedFiles, predicate: Predicate) -> pa.Table | None:
        """The live files that may match as a `pa.Table`, None if they are too many."""
        limit = self._setting(MAX_COLLECTED_FILES)
        if predicate == Constant(value=True) and logged.num_files - len(logged.hidden) > limit:
            return None
        files = _checkpointed_files(self.session, logged, predicate)
        if files is None:
            return logged.added
        found = _as_live_files(files.limit(limit + 1).toArrow())
        return None if found.num_rows > limit else pa.concat_tables([found, logged.added])

    def read_files(self, plan: ReadPlan, logged: LoggedFiles, predicate: Predicate) -> DataFrame:
        """The rows of the live files that may match, for any number of files.

        The executors read them with the Arrow engine, because Spark's own reader needs all files on
        the driver.

        `plan`: the read; its files are ignored.
        """
        named = frame_of(self.session, encode_files(logged.added), FILE_SCHEMA)
        num_tasks = -(-logged.added.num_rows // _TASK_FILES)
        files = _checkpointed_files(self.session, logged, predicate)
        if files is not None:
            num_tasks += self._num_tasks(files)
            named = self._encoded(files).union(named)
        spread = named.repartition(max(1, min(num_tasks, _MAX_TASKS)))
        return read_listed_files(self.session, plan, spread)

    def _num_tasks(self, files: DataFrame) -> int:
        functions = functions_of(self.session)
        counted = files.agg(functions.count("*"), functions.sum("size_bytes")).collect()
        count, size_bytes = int(counted[0][0]), int(counted[0][1] or 0)
        return max(-(-count // _TASK_FILES), -(-size_bytes // _TASK_BYTES))

    def _encoded(self, files: DataFrame) -> DataFrame:
        """Files in the format of `encode_files`."""
        functions = functions_of(self.session)
        entries = functions.map_entries("partition_values")
        pairs = functions.transform(
            entries, lambda each: functions.array(each.getField("key"), each.getField("value"))
        )
        named = functions.struct(
            "path", "size_bytes", pairs.alias("partition_values"), "deletion_vector"
        )
        return files.select(functions.to_json(named, {"ignoreNullFields": "false"}).alias("file"))

    def _setting(self, name: str) -> int:
        # Without a default, a Connect server logs an error where the setting is not set.
        text = self.session.conf.get(name, str(_DEFAULTS[name])) or ""
        if not text.isdecimal():
            raise InvalidArgument(f"the Spark setting {name} is a number of files, not {text!r}")
        return int(text)


def _as_live_files(rows: pa.Table) -> pa.Table:
    """Rows from Spark as a `pa.Table` of LIVE_FILE_SCHEMA."""
    columns = []
    for field in LIVE_FILE_SCHEMA:
        chunks = [
            _as_vectors(chunk) if field.type == DELETION_VECTOR_TYPE else conform(chunk, field.type)
            for chunk in rows.column(field.name).chunks
        ]
        columns.append(pa.chunked_array(chunks, field.type))
    return pa.Table.from_arrays(columns, schema=LIVE_FILE_SCHEMA)


def _as_vectors(structs: pa.StructArray) -> pa.StructArray:
    children = [
        conform(structs.field(index), field.type)
        for index, field in enumerate(DELETION_VECTOR_TYPE)
    ]
    return pa.StructArray.from_arrays(
        children, fields=list(DELETION_VECTOR_TYPE), mask=structs.is_null()
    )


PARSED_STATISTICS = "stats_parsed"
"""The field with statistics as typed columns."""

# Without these fields, neither the file of a row nor its live rows are known.
_REQUIRED = ("path", "partitionValues", "size", "deletionVector")

_PLAIN = {
    pa.string(): "StringType",
    pa.large_string(): "StringType",
    pa.binary(): "BinaryType",
    pa.bool_(): "BooleanType",
    pa.int8(): "ByteType",
    pa.int16(): "ShortType",
    pa.int32(): "IntegerType",
    pa.int64(): "LongType",
    pa.float32(): "FloatType",
    pa.float64(): "DoubleType",
    pa.date32(): "DateType",
}


def add_type(part: CheckpointPart) -> spark_types.StructType:
    """The `add` struct of a file without statistics as columns: only the fields and types
    that the file has, because Spark reads a column only as its stored type.
    """
    names = [name for name in ADD_SOURCES.values() if part.has("add", name)]
    return _struct(part.schema.field("add").type, names)


def with_parsed_statistics(
    add: spark_types.StructType, part: CheckpointPart
) -> spark_types.StructType:
    """The same with the statistics that the file has as columns, where Spark reads their types."""
    from pyspark.sql import types

    if not part.has("add", PARSED_STATISTICS):
        return add
    stored = part.schema.field("add").type.field(PARSED_STATISTICS).type
    parsed = _spark_type(stored)
    if not isinstance(parsed, types.StructType) or "numRecords" not in parsed.fieldNames():
        return add
    return types.StructType([*add.fields, types.StructField(PARSED_STATISTICS, parsed)])


def has_unreadable_add(part: CheckpointPart) -> bool:
    """Whether a checkpoint stores a required field of an add in a type that is not read."""
    found = add_type(part).fieldNames()
    return any(part.has("add", name) and name not in found for name in _REQUIRED)


def _struct(stored: pa.StructType, names: Iterable[str]) -> spark_types.StructType:
    from pyspark.sql import types

    typed: Mapping[str, spark_types.DataType | None] = {
        name: _spark_type(stored.field(name).type) for name in names
    }
    return types.StructType(
        [types.StructField(name, each) for name, each in typed.items() if each is not None]
    )


def _spark_type(stored: pa.DataType) -> spark_types.DataType | None:
    """The type of a stored column; None if Spark's reader and ours may read it differently."""
    from pyspark.sql import types

    if stored in _PLAIN:
        plain: spark_types.DataType = getattr(types, _PLAIN[stored])()
        return plain
    if pa.types.is_decimal128(stored):
        return types.DecimalType(stored.precision, stored.scale)
    if pa.types.is_timestamp(stored) and stored.unit in {"us", "ms"}:
        # The old INT96 is shown as nanoseconds.
        return types.TimestampNTZType() if stored.tz is None else types.TimestampType()
    if pa.types.is_struct(stored):
        found = _struct(stored, [field.name for field in stored])
        return found if found.fields else None
    if pa.types.is_map(stored):
        key, item = _spark_type(stored.key_type), _spark_type(stored.item_type)
        return None if key is None or item is None else types.MapType(key, item)
    return None
