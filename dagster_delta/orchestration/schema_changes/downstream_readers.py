"""Which assets read which columns of another, as far as definitions and column lineage tell."""

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

__all__ = ["assets_of_code_location", "downstream_readers"]

_LINEAGE_KEY = "dagster/column_lineage"
_UNKNOWN = "(no column lineage)"


def assets_of_code_location(context: OpExecutionContext) -> tuple[AssetsDefinition, ...]:
    """All assets of the code location that a step runs in; none if it runs in none, as a job does
    that a test executes by itself.

    Args:
        context: of the step.
    """
    try:
        return tuple(context.repository_def.assets_defs_by_key.values())
    except CheckError:
        return ()


def downstream_readers(
    instance: DagsterInstance, assets: Iterable[Any], key: AssetKey, columns: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """The assets that read some columns of an asset, or columns that were computed from them.

    The lineage is that of an asset's latest materialisation, or else of its definition. Assets
    without any are told too, as they may read every column; what lies behind them is not.

    Args:
        instance: knows the latest materialisations.
        assets: definitions among which to look.
        key: of the asset that is read.
        columns: its columns in question, top-level names.

    Returns:
        The columns that each reads by its asset key, as `a/b`; those of another asset than the one
        in question as `a/b.column`.
    """
    # Keyed: the same asset may be given twice, by the job and by the code location.
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
                told = found.setdefault(spec.key.to_user_string(), set())
                told |= {f"{prefix}{each}" for each in read}
                waiting.append((spec.key, frozenset(each.casefold() for each in computed)))
    return {reader: tuple(sorted(read)) for reader, read in found.items()}


def _specs(assets: Iterable[Any]) -> Iterator[AssetSpec]:
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
    """The wanted columns that an asset reads, and its own that come from them; None for the first
    where it has no lineage.
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


def _lineage(instance: DagsterInstance, spec: AssetSpec) -> Any:
    event = instance.get_latest_materialization_event(spec.key)
    materialization = None if event is None else event.asset_materialization
    told = {} if materialization is None else materialization.metadata
    value = told.get(_LINEAGE_KEY, spec.metadata.get(_LINEAGE_KEY))
    return value.value if isinstance(value, MetadataValue) else value
