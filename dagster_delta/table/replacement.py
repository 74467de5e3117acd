"""Which files an overwrite removes, which rows of them stay, and what that depends on.

Spec: Add File and Remove File; Partition Value Serialization.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.engines.engine import Engine, ReadPlan
from dagster_delta.errors import UnsupportedFeature
from dagster_delta.protocol.actions import AddFile, DeletionVectorDescriptor, RemoveFile
from dagster_delta.protocol.arrow_schema import to_arrow_schema
from dagster_delta.protocol.conflict_checker import ReadScope
from dagster_delta.protocol.partition_values import parse_partition_column, parse_partition_value
from dagster_delta.protocol.table_configuration import TableConfiguration

if TYPE_CHECKING:
    from dagster_delta.engines.sql_expressions import SqlExpression
    from dagster_delta.table.snapshot import Snapshot

__all__ = ["Replacement", "replace_everything", "replace_matching", "replace_partitions"]

_REMOVE_COLUMNS = (
    "path",
    "partition_values",
    "size_bytes",
    "deletion_vector",
    "base_row_id",
    "default_row_commit_version",
    "tags",
)

PartitionKey = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Replacement:
    """What an overwrite takes out of the table."""

    removes: tuple[RemoveFile, ...] = ()
    """Tombstones of the files that leave."""
    reads: ReadScope = field(default_factory=ReadScope)
    """What the choice depends on."""
    remaining: ReadPlan | None = None
    """Rows of removed files that stay in the table and have to be written again."""


def replace_everything(snapshot: Snapshot, *, now_ms: int) -> Replacement:
    """Every file of the table.

    Args:
        snapshot: the table.
        now_ms: time of the removal in milliseconds since the epoch.
    """
    files = snapshot.live_files(_REMOVE_COLUMNS)
    return Replacement(_tombstones(files, now_ms), ReadScope(whole_table=True))


def replace_partitions(
    snapshot: Snapshot, written: Iterable[AddFile], *, now_ms: int
) -> Replacement:
    """Every file of the partitions that new files were written to.

    Partitions are compared by value: writers spell one value in several ways.

    Args:
        snapshot: the table.
        written: the new files.
        now_ms: time of the removal in milliseconds since the epoch.
    """
    key = _partition_key(snapshot.configuration)
    replaced = {key(each.partition_values) for each in written}
    files = snapshot.live_files(_REMOVE_COLUMNS)
    values = files["partition_values"].to_pylist()
    chosen = pa.array([key(dict(each)) in replaced for each in values], pa.bool_())
    removes = _tombstones(files.filter(chosen), now_ms)
    return Replacement(
        removes,
        ReadScope(
            may_hold=lambda add: key(add.partition_values) in replaced,
            paths=frozenset(each.path for each in removes),
        ),
    )


def _partition_key(
    configuration: TableConfiguration,
) -> Callable[[Mapping[str, str | None]], PartitionKey]:
    columns = tuple(
        zip(
            configuration.physical_partition_columns,
            (each.data_type for each in configuration.partition_schema),
            strict=True,
        )
    )
    parsed: dict[tuple[str, str | None], object] = {}

    def value(name: str, text: str | None, data_type: Any) -> object:
        if (name, text) not in parsed:
            found = parse_partition_value(text, data_type)
            # NaN equals nothing, itself included, and is one partition all the same.
            parsed[name, text] = "NaN" if found != found else found
        return parsed[name, text]

    def key(values: Mapping[str, str | None]) -> PartitionKey:
        return tuple(value(name, values.get(name), data_type) for name, data_type in columns)

    return key


def replace_matching(snapshot: Snapshot, where: str, engine: Engine, *, now_ms: int) -> Replacement:
    """The files that hold rows for which a predicate is true.

    A predicate on partition columns alone takes whole files. Otherwise the rows of a file that do
    not match stay, and are read by `remaining`.

    Args:
        snapshot: the table.
        where: Spark SQL over logical columns.
        engine: reads files to see whether any row matches, where it is the embedded one.
        now_ms: time of the removal in milliseconds since the epoch.

    Raises:
        InvalidArgument, SchemaMismatch, UnsupportedExpression: of the predicate.
        UnsupportedFeature: rows of a file would stay, and the table has a change data feed.
    """
    from dagster_delta.engines.sql_expressions import parse_expression

    expression = parse_expression(where, snapshot.schema)
    configuration = snapshot.configuration
    partitioned = set(configuration.partition_columns)
    if all(path[0] in partitioned for path in expression.references):
        files = snapshot.live_files(_REMOVE_COLUMNS)
        chosen = files.filter(_matches(expression, files["partition_values"], configuration))
        removes = _tombstones(chosen, now_ms)
        return Replacement(removes, _partition_scope(expression, configuration, removes))
    return _replace_rows(snapshot, where, expression, engine, now_ms=now_ms)


def _matches(
    expression: SqlExpression, partition_values: Any, configuration: TableConfiguration
) -> Any:
    """For each file whether its partition values make the predicate true."""
    schema = to_arrow_schema(configuration.partition_schema)
    maps = partition_values
    if isinstance(maps, pa.ChunkedArray):
        maps = maps.combine_chunks()
    columns = [
        parse_partition_column(pc.map_lookup(maps, pa.scalar(name), "last"), each.data_type)
        for name, each in zip(
            configuration.physical_partition_columns, configuration.partition_schema, strict=True
        )
    ]
    rows = pa.Table.from_arrays(columns, schema=schema)
    return pc.fill_null(expression.evaluate(rows), False)


def _partition_scope(
    expression: SqlExpression, configuration: TableConfiguration, removes: tuple[RemoveFile, ...]
) -> ReadScope:
    map_type = pa.map_(pa.string(), pa.string())

    def may_hold(add: AddFile) -> bool:
        values = pa.array([list(add.partition_values.items())], map_type)
        return bool(_matches(expression, values, configuration)[0].as_py())

    return ReadScope(may_hold=may_hold, paths=frozenset(each.path for each in removes))


def _replace_rows(
    snapshot: Snapshot, where: str, expression: SqlExpression, engine: Engine, *, now_ms: int
) -> Replacement:
    from dagster_delta.engines.sql_expressions import parse_expression
    from dagster_delta.table.scan import Scan

    # Null is no match, so a row stays unless the predicate is true of it.
    stays = f"NOT coalesce(({where}), FALSE)"
    matching = Scan(snapshot, where=where).files()
    partly = Scan(snapshot, where=stays).files()
    rewritten = matching.filter(pc.is_in(matching["path"], value_set=_whole(partly["path"])))
    untouched = _paths_without_match(snapshot, rewritten, expression, engine)
    removed = _without(matching, untouched)
    rewritten = _without(rewritten, untouched)
    if rewritten.num_rows and snapshot.configuration.change_data_feed_enabled:
        raise UnsupportedFeature(
            "the predicate matches parts of files, and this library does not write the change data "
            "that the table asks for (delta.enableChangeDataFeed); overwrite whole partitions, or "
            "write with an engine that does",
            table=snapshot.store.location.uri,
            version=snapshot.version,
        )
    remaining = None
    if rewritten.num_rows:
        remaining = ReadPlan(
            store=snapshot.store,
            version=snapshot.version,
            configuration=snapshot.configuration,
            files=rewritten,
            columns=snapshot.schema.names,
            where=parse_expression(stays, snapshot.schema),
        )
    return Replacement(
        _tombstones(removed, now_ms),
        # What a new file holds is only known once it is read: any may hold a match.
        ReadScope(may_hold=lambda _: True, paths=frozenset(matching["path"].to_pylist())),
        remaining,
    )


def _whole(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _without(files: Any, paths: list[str]) -> Any:
    if not paths:
        return files
    return files.filter(pc.invert(pc.is_in(files["path"], value_set=pa.array(paths, pa.string()))))


def _paths_without_match(
    snapshot: Snapshot, files: Any, expression: SqlExpression, engine: Engine
) -> list[str]:
    """Files in which statistics allow a match and no row is one: they need not be rewritten."""
    columns = tuple(dict.fromkeys(path[0] for path in sorted(expression.references)))
    names = tuple(snapshot.schema.field(name).name for name in columns)
    without: list[str] = []
    for index in range(files.num_rows):
        file = files.slice(index, 1)
        rows = engine.read(
            ReadPlan(
                store=snapshot.store,
                version=snapshot.version,
                configuration=snapshot.configuration,
                files=file,
                columns=names,
                where=expression,
            )
        )
        if not isinstance(rows, pa.RecordBatchReader):
            # A distributed engine would start a job per file; it rewrites them instead.
            return []
        if not any(batch.num_rows for batch in rows):
            without.append(file["path"][0].as_py())
    return without


def _tombstones(files: Any, now_ms: int) -> tuple[RemoveFile, ...]:
    rows = zip(*(files[name].to_pylist() for name in _REMOVE_COLUMNS), strict=True)
    return tuple(
        RemoveFile(
            path=path,
            deletion_timestamp_ms=now_ms,
            data_change=True,
            extended_file_metadata=True,
            partition_values=dict(partition_values or ()),
            size_bytes=size_bytes,
            tags=None if tags is None else dict(tags),
            deletion_vector=_descriptor(deletion_vector),
            base_row_id=base_row_id,
            default_row_commit_version=default_row_commit_version,
        )
        for (
            path,
            partition_values,
            size_bytes,
            deletion_vector,
            base_row_id,
            default_row_commit_version,
            tags,
        ) in rows
    )


def _descriptor(fields: Mapping[str, Any] | None) -> DeletionVectorDescriptor | None:
    return None if fields is None else DeletionVectorDescriptor(**fields)
