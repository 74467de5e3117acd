"""Which assets read which columns of another asset, from definitions and column lineage."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from dagster import (
    AssetKey,
    AssetsDefinition,
    AssetSpec,
    DagsterInstance,
    MetadataValue,
    OpExecutionContext,
)
from dagster_shared.check import CheckError

_LINEAGE_KEY = "dagster/column_lineage"
_UNKNOWN = "(no column lineage)"


def assets_of_code_location(context: OpExecutionContext) -> tuple[AssetsDefinition, ...]:
    """All assets of the code location in which a step runs; none outside a code location, as in a
    test that executes a job directly.
    """
    try:
        return tuple(context.repository_def.assets_defs_by_key.values())
    except CheckError:
        return ()


def downstream_readers(
    instance: DagsterInstance, assets: Iterable[object], key: AssetKey, columns: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """By asset key, as `a/b`: the columns that an asset reads among some top-level columns of the
    upstream asset `key`, and among columns computed from them, which are named `a/b.column`.

    The lineage is from an asset's latest materialisation, or else from its definition. Assets
    without lineage are included, because they may read every column; assets downstream of them are
    not.
    """
    # By key, since the same asset may be given twice, by the job and by the code location.
    specs = tuple({spec.key: spec for spec in _specs(assets)}.values())
    found: dict[str, set[str]] = {}
    waiting = [(key, frozenset(each.casefold() for each in columns))]
    seen: set[tuple[AssetKey, str]] = set()
    while waiting:
        source, wanted = waiting.pop(0)
        wanted = frozenset(each for each in wanted if (source, each) not in seen)
        seen |= {(source, each) for each in wanted}
        for spec in _direct_readers(specs, source) if wanted else ():
            read, computed = _read_columns(instance, spec, source, wanted)
            prefix = "" if source == key else f"{source.to_user_string()}."
            if read is None:
                found.setdefault(spec.key.to_user_string(), set()).add(_UNKNOWN)
            elif read:
                columns_read = found.setdefault(spec.key.to_user_string(), set())
                columns_read |= {f"{prefix}{each}" for each in read}
                waiting.append((spec.key, frozenset(each.casefold() for each in computed)))
    return {reader: tuple(sorted(read)) for reader, read in found.items()}


def _specs(assets: Iterable[object]) -> Iterator[AssetSpec]:
    for asset in assets:
        if isinstance(asset, AssetsDefinition):
            yield from asset.specs
        elif isinstance(asset, AssetSpec):
            yield asset


def _direct_readers(specs: Iterable[AssetSpec], key: AssetKey) -> Iterator[AssetSpec]:
    for spec in specs:
        if any(dep.asset_key == key for dep in spec.deps):
            yield spec


def _read_columns(
    instance: DagsterInstance, spec: AssetSpec, source: AssetKey, wanted: Collection[str]
) -> tuple[set[str] | None, set[str]]:
    """The searched columns that an asset reads, and its own columns computed from them; the first
    is None if it has no lineage.
    """
    lineage = _lineage(instance, spec)
    if lineage is None:
        return None, set()
    read: set[str] = set()
    computed: set[str] = set()
    for column, deps in lineage.deps_by_column.items():
        hits = {
            dep.column_name
            for dep in deps
            if dep.asset_key == source and dep.column_name.casefold() in wanted
        }
        read |= hits
        if hits:
            computed.add(column)
    return read, computed


def _lineage(instance: DagsterInstance, spec: AssetSpec) -> Any:  # noqa: ANN401
    event = instance.get_latest_materialization_event(spec.key)
    materialization = None if event is None else event.asset_materialization
    metadata = {} if materialization is None else materialization.metadata
    value = metadata.get(_LINEAGE_KEY, spec.metadata.get(_LINEAGE_KEY))
    return value.value if isinstance(value, MetadataValue) else value
