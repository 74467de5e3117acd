"""The assets that a schema change may affect: those that read the columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_delta.evolution.plan_report import table_cell
from dagster_delta.orchestration.metadata_keys import COLUMNS_READ_KEY, QUERY_KEY

_LINEAGE_KEY = "dagster/column_lineage"
_ALL = "every column"


def readers_of_change(
    instance: dg.DagsterInstance,
    assets: Iterable[object],
    key: dg.AssetKey,
    columns: Sequence[str],
    table_columns: Sequence[str],
    *,
    adds_columns: bool,
) -> str:
    """The assets that read what changes in the asset `key`, as Markdown, or why there are none.

    Columns of assets between, computed from what changes, are named `a/b.column`. An asset that has
    read every column so far, as `SELECT *` does, gets new ones and passes them on. Assets are
    included if it is not known what they read; assets downstream of them are not.

    Args:
        instance: has the latest materializations, with the columns that they read.
        assets: those that may read the table.
        key: asset whose table changes.
        columns: top-level columns that change or are dropped.
        table_columns: all top-level columns before the change.
        adds_columns: whether top-level columns are added.
    """
    # By key, since the same asset may be given twice, by the job and by the code location.
    specs = tuple({spec.key: spec for spec in _specs(assets)}.values())
    found: dict[str, set[str]] = {}
    waiting = [(key, _folded(columns), adds_columns, _folded(table_columns))]
    seen: set[tuple[dg.AssetKey, str]] = set()
    while waiting:
        source, wanted, grows, all_columns = waiting.pop(0)
        wanted = frozenset(column for column in wanted if (source, column) not in seen)
        grows = grows and (source, _ALL) not in seen
        seen |= {(source, column) for column in (*wanted, *([_ALL] if grows else []))}
        name = source.to_user_string()
        prefix, of_source = ("", "") if source == key else (f"{name}.", f" of {name}")
        for spec in _direct_readers(specs, source) if wanted or grows else ():
            reads = _Reads.of(instance, spec, source, table_columns if source == key else None)
            read = {f"{prefix}{name}" for folded, name in reads.columns.items() if folded in wanted}
            reads_all = grows and all_columns <= reads.columns.keys()
            if reads_all:
                read.add(f"{_ALL}{of_source}")
            if read:
                computed = [name for name, deps in reads.computed.items() if deps & wanted]
                every = _folded(reads.computed)
                waiting.append((spec.key, _folded(computed), reads_all, every))
            elif reads.unknown is not None:
                read.add(reads.unknown)
            if read:
                found.setdefault(spec.key.to_user_string(), set()).update(read)
    if found:
        head = "### Who reads the columns\n\n| downstream asset | reads |\n|---|---|"
        cells = {asset: table_cell(", ".join(sorted(read))) for asset, read in found.items()}
        return "\n".join([head, *(f"| `{asset}` | {cell} |" for asset, cell in cells.items())])
    if not any(_direct_readers(specs, key)):
        return "No asset of the code location reads the table."
    return (
        "No asset of the code location is affected: the queries that read the table read other "
        "columns."
    )


def _folded(columns: Iterable[str]) -> frozenset[str]:
    return frozenset(column.casefold() for column in columns)


@dataclass(frozen=True, slots=True)
class _Reads:
    """The columns of an upstream asset that an asset reads."""

    columns: Mapping[str, str]
    """Those that are known, by their name in lower case."""
    computed: Mapping[str, set[str]]
    """By column of the asset: the columns it is computed from, in lower case."""
    unknown: str | None
    """Why it may read others; None if it reads no others."""

    @classmethod
    def of(
        cls,
        instance: dg.DagsterInstance,
        spec: dg.AssetSpec,
        source: dg.AssetKey,
        source_columns: Sequence[str] | None,
    ) -> _Reads:
        """From the latest materialization of the asset, or else from its definition.

        Args:
            instance: has the materializations.
            spec: of the asset.
            source: the upstream asset.
            source_columns: its columns now; None if they do not change.
        """
        event = instance.get_latest_materialization_event(spec.key)
        materialization = None if event is None else event.asset_materialization
        recorded = {} if materialization is None else materialization.metadata

        def value(key: str) -> Any:  # noqa: ANN401
            found = recorded.get(key, spec.metadata.get(key))
            return found.value if isinstance(found, dg.MetadataValue) else found

        lineage = value(_LINEAGE_KEY)
        deps_by_column = {} if lineage is None else lineage.deps_by_column
        computed: dict[str, set[str]] = {}
        columns: dict[str, str] = {}
        for column, deps in deps_by_column.items():
            names = [dep.column_name for dep in deps if dep.asset_key == source]
            computed[column] = {name.casefold() for name in names}
            columns |= {name.casefold(): name for name in names}
        query = (value(COLUMNS_READ_KEY) or {}).get(source.to_user_string())
        if query is None:
            # Lineage leaves out what only filters, joins or groups.
            nothing = "(no column lineage)"
            return cls(columns, computed, nothing if lineage is None else "(maybe in a filter)")
        columns |= {column.casefold(): column for column in query["read"]}
        is_current = recorded.get(QUERY_KEY) == spec.metadata.get(QUERY_KEY) and (
            source_columns is None or set(source_columns) == set(query["of"])
        )
        return cls(columns, computed, None if is_current else "(it has not run since a change)")


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
