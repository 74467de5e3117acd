"""The assets that a schema change may affect: those that read the columns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import dagster as dg

from dagster_delta.evolution.plan_report import table_cell

_LINEAGE_KEY = "dagster/column_lineage"
_UNKNOWN = "(no column lineage)"
_ALL = "every column"


def readers_of_change(
    instance: dg.DagsterInstance,
    assets: Iterable[object],
    key: dg.AssetKey,
    columns: Sequence[str],
    columns_beside_new: Sequence[str],
) -> str:
    """The assets that read what changes in the asset `key`, as Markdown, or why there are none.

    Args:
        instance: has the latest materializations, with their column lineage.
        assets: those that may read the table.
        key: asset whose table changes.
        columns: top-level columns that change or are dropped.
        columns_beside_new: if columns are added, all top-level columns before.
    """
    # By key, since the same asset may be given twice, by the job and by the code location.
    specs = tuple({spec.key: spec for spec in _specs(assets)}.values())
    readers = _downstream_readers(instance, specs, key, columns)
    if columns_beside_new:
        for reader, read in _readers_of_all(instance, specs, key, columns_beside_new).items():
            readers.setdefault(reader, set()).update(read)
    if readers:
        rows = [
            f"| `{asset}` | {table_cell(', '.join(sorted(read)))} |"
            for asset, read in readers.items()
        ]
        head = "| downstream asset | reads |\n|---|---|"
        return "\n".join(["### Who reads the columns", "", head, *rows])
    if not any(_direct_readers(specs, key)):
        return "No asset of the code location reads the table."
    return (
        "No asset of the code location is affected: by their column lineage, those that read the "
        "table read other columns."
    )


def _readers_of_all(
    instance: dg.DagsterInstance,
    specs: Sequence[dg.AssetSpec],
    key: dg.AssetKey,
    columns: Sequence[str],
) -> dict[str, set[str]]:
    """By asset key: the assets that get new columns of `key`, as `SELECT *` does. They have read
    every column so far, or have no lineage. They pass new columns on.
    """
    found: dict[str, set[str]] = {}
    waiting = [(key, {each.casefold() for each in columns})]
    seen: set[dg.AssetKey] = set()
    while waiting:
        source, expected = waiting.pop(0)
        seen.add(source)
        where = "" if source == key else f" of {source.to_user_string()}"
        for spec in _direct_readers(specs, source):
            lineage = _lineage(instance, spec)
            read = found.setdefault(spec.key.to_user_string(), set())
            if lineage is None:
                read.add(_UNKNOWN)
            elif expected <= _columns_read(lineage, source):
                read.add(f"{_ALL}{where}")
                if spec.key not in seen:
                    waiting.append((spec.key, {each.casefold() for each in lineage.deps_by_column}))
    return {reader: read for reader, read in found.items() if read}


def _columns_read(lineage: Any, source: dg.AssetKey) -> set[str]:  # noqa: ANN401
    return {
        dep.column_name.casefold()
        for deps in lineage.deps_by_column.values()
        for dep in deps
        if dep.asset_key == source
    }


def _downstream_readers(
    instance: dg.DagsterInstance,
    specs: Sequence[dg.AssetSpec],
    key: dg.AssetKey,
    columns: Sequence[str],
) -> dict[str, set[str]]:
    """By asset key, as `a/b`: the columns that an asset reads among some top-level columns of the
    upstream asset `key`, and among columns computed from them, which are named `a/b.column`.

    The lineage is from an asset's latest materialisation, or else from its definition. Assets
    without lineage are included, because they may read every column; assets downstream of them are
    not.
    """
    found: dict[str, set[str]] = {}
    waiting = [(key, frozenset(each.casefold() for each in columns))]
    seen: set[tuple[dg.AssetKey, str]] = set()
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
    return found


def _specs(assets: Iterable[object]) -> Iterator[dg.AssetSpec]:
    for asset in assets:
        if isinstance(asset, dg.AssetsDefinition):
            yield from asset.specs
        elif isinstance(asset, dg.AssetSpec):
            yield asset


def _direct_readers(specs: Iterable[dg.AssetSpec], key: dg.AssetKey) -> Iterator[dg.AssetSpec]:
    for spec in specs:
        if any(dep.asset_key == key for dep in spec.deps):
            yield spec


def _read_columns(
    instance: dg.DagsterInstance, spec: dg.AssetSpec, source: dg.AssetKey, wanted: Collection[str]
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


def _lineage(instance: dg.DagsterInstance, spec: dg.AssetSpec) -> Any:  # noqa: ANN401
    event = instance.get_latest_materialization_event(spec.key)
    materialization = None if event is None else event.asset_materialization
    metadata = {} if materialization is None else materialization.metadata
    value = metadata.get(_LINEAGE_KEY, spec.metadata.get(_LINEAGE_KEY))
    return value.value if isinstance(value, dg.MetadataValue) else value
