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
from dagster_delta.errors import UnsupportedExpression, UnsupportedFeature
from dagster_delta.protocol.actions import AddFile, RemoveFile
from dagster_delta.protocol.arrow_schema import to_arrow_schema
from dagster_delta.protocol.checkpoint_structs import whole_array
from dagster_delta.protocol.conflict_checker import ReadScope
from dagster_delta.protocol.file_skipping import skip_files
from dagster_delta.protocol.partition_values import parse_partition_column, parse_partition_value
from dagster_delta.protocol.predicates import IsTrue, Not, Predicate
from dagster_delta.protocol.statistics import parse_statistics_json
from dagster_delta.protocol.table_configuration import TableConfiguration
from dagster_delta.table.file_actions import REMOVED_COLUMNS, tombstones

if TYPE_CHECKING:
    from dagster_delta.engines.sql.expressions import SqlExpression
    from dagster_delta.table.snapshot import Snapshot

__all__ = ["Replacement", "replace_everything", "replace_matching", "replace_partitions"]

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
    files = snapshot.live_files(REMOVED_COLUMNS)
    return Replacement(tombstones(files, now_ms), ReadScope(whole_table=True))


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
    files = snapshot.live_files(REMOVED_COLUMNS)
    values = files["partition_values"].to_pylist()
    chosen = pa.array([key(dict(each)) in replaced for each in values], pa.bool_())
    removes = tombstones(files.filter(chosen), now_ms)
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


def replace_matching(
    snapshot: Snapshot,
    expression: SqlExpression,
    engine: Engine,
    *,
    now_ms: int,
    session_is_utc: bool = True,
) -> Replacement:
    """The files that hold rows for which a predicate is true.

    A predicate on partition columns alone takes whole files. Otherwise the rows of a file that do
    not match stay, and are read by `remaining`.

    Args:
        snapshot: the table.
        expression: over logical columns.
        engine: evaluates it on the rows of files that match in part.
        now_ms: time of the removal in milliseconds since the epoch.
        session_is_utc: whether that engine reads timestamps without a zone in UTC.

    Raises:
        UnsupportedExpression: the engine cannot evaluate it.
        UnsupportedFeature: rows of a file would stay, and the table has a change data feed.
    """
    by_partition = _by_partition(snapshot.configuration, expression, session_is_utc=session_is_utc)
    if by_partition is None:
        predicate = expression.to_predicate(session_is_utc=session_is_utc)
        return _replace_rows(snapshot, expression, predicate, engine, now_ms=now_ms)
    files = snapshot.live_files(REMOVED_COLUMNS)
    chosen = by_partition(whole_array(files["partition_values"]))
    removes = tombstones(files.filter(chosen), now_ms)

    def may_hold(add: AddFile) -> bool:
        return bool(by_partition(_partition_map(add))[0].as_py())

    return Replacement(
        removes, ReadScope(may_hold=may_hold, paths=frozenset(each.path for each in removes))
    )


def _by_partition(
    configuration: TableConfiguration, expression: SqlExpression, *, session_is_utc: bool
) -> Callable[[Any], Any] | None:
    """What tells from partition values whether every row of a file matches, or none does.

    None where the predicate needs more than they say, or another engine to evaluate it.
    """
    partitioned = set(configuration.partition_columns)
    if any(path[0] not in partitioned for path in expression.references):
        return None
    if expression.depends_on_time_zone and not session_is_utc:
        return None
    try:
        expression.check_embeddable()
    except UnsupportedExpression:
        return None
    schema = to_arrow_schema(configuration.partition_schema)

    def matches(partition_values: Any) -> Any:
        columns = [
            parse_partition_column(
                pc.map_lookup(partition_values, pa.scalar(name), "last"), each.data_type
            )
            for name, each in zip(
                configuration.physical_partition_columns,
                configuration.partition_schema,
                strict=True,
            )
        ]
        rows = pa.Table.from_arrays(columns, schema=schema)
        return pc.fill_null(expression.mask(rows), False)

    return matches


def _partition_map(add: AddFile) -> Any:
    return pa.array([list(add.partition_values.items())], pa.map_(pa.string(), pa.string()))


def _replace_rows(
    snapshot: Snapshot,
    expression: SqlExpression,
    predicate: Predicate,
    engine: Engine,
    *,
    now_ms: int,
) -> Replacement:
    from dagster_delta.engines.sql.expressions import parse_expression

    # Null is no match: a row stays unless the predicate is true of it. The line end closes a
    # comment that the text may end with.
    stays = parse_expression(f"({expression.sql}\n) IS NOT TRUE", snapshot.schema)
    files = snapshot.live_files()
    may_match = _may_hold(snapshot, predicate)
    may_stay = _may_hold(snapshot, Not(IsTrue(predicate)))
    untouched = _without_match(
        snapshot, files.filter(pc.and_(may_match, may_stay)), expression, engine
    )
    touched = pc.invert(pc.is_in(files["path"], value_set=untouched))
    removed = files.filter(pc.and_(may_match, touched))
    rewritten = files.filter(pc.and_(pc.and_(may_match, may_stay), touched))
    if rewritten.num_rows and snapshot.configuration.change_data_feed_enabled:
        raise UnsupportedFeature(
            "the predicate matches parts of files, and this library does not write the change data "
            "that the table asks for (delta.enableChangeDataFeed); overwrite whole partitions, or "
            "write with an engine that does",
            table=snapshot.store.location.uri,
            version=snapshot.version,
        )
    remaining = _plan(snapshot, rewritten, snapshot.schema.names, stays)
    return Replacement(
        tombstones(removed, now_ms),
        ReadScope(
            may_hold=lambda add: _may_hold_rows(snapshot.configuration, predicate, add),
            paths=frozenset(files["path"].filter(may_match).to_pylist()),
        ),
        remaining if rewritten.num_rows else None,
    )


def _may_hold(snapshot: Snapshot, predicate: Predicate) -> Any:
    """For each live file whether a row in it may satisfy the predicate."""
    values = snapshot.live_files(["partition_values"])["partition_values"]
    skipped = skip_files(predicate, snapshot.configuration, values, snapshot.statistics)
    return skipped.may_match


def _may_hold_rows(configuration: TableConfiguration, predicate: Predicate, add: AddFile) -> bool:
    stats = pa.array([add.stats], pa.string())
    skipped = skip_files(
        predicate,
        configuration,
        _partition_map(add),
        lambda columns: parse_statistics_json(stats, columns),
    )
    return bool(skipped.may_match[0].as_py())


def _plan(
    snapshot: Snapshot, files: Any, columns: tuple[str, ...], where: SqlExpression
) -> ReadPlan:
    return ReadPlan(
        store=snapshot.store,
        version=snapshot.version,
        configuration=snapshot.configuration,
        files=files,
        columns=columns,
        where=where,
    )


def _without_match(
    snapshot: Snapshot, files: Any, expression: SqlExpression, engine: Engine
) -> Any:
    """Paths of files in which statistics allow a match and no row is one: they can stay."""
    names = {snapshot.schema.field(path[0]).name for path in expression.references}
    without: list[str] = []
    for index in range(files.num_rows):
        file = files.slice(index, 1)
        rows = engine.read(_plan(snapshot, file, tuple(sorted(names)), expression))
        if not isinstance(rows, pa.RecordBatchReader):
            # A distributed engine would start a job per file; it rewrites them instead.
            break
        if not any(batch.num_rows for batch in rows):
            without.append(file["path"][0].as_py())
    return pa.array(without, pa.string())
