"""What the UI shows of one version of a table, from the log alone: metadata, the data version and
the history.

The data version of an asset names the rows of its table. It is `table_id:version` of the last
commit that changed rows, for every event: of the IO manager, observations, maintenance, schema
changes and sensors.
"""

from __future__ import annotations

import datetime as dt
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any

import dagster as dg

from dagster_delta.errors import DeltaError, InvalidArgument, TableNotFound
from dagster_delta.orchestration.metadata_keys import DETAILS, RawMetadata, RawMetadataValue, shown
from dagster_delta.storage import canonical_uri, holds_password, local_root, scheme_of
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.log.commit_summary import CommitSummary, rows_by_deed
from dagster_delta.table.operations.clustering import clustering_names
from dagster_delta.table.read.history import HistoryEntry, latest_commits
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.read.watch import NOTHING_SEEN, LogCursor, data_version, last_data_change
from dagster_delta.table.spelling import sql_type_name
from dagster_delta.table.table_discovery import DeclaredTable

DELTA_KIND = "deltalake"
"""Kind of an asset that is a Delta table; the UI has an icon for it."""

_log = logging.getLogger(__name__)

IO_MANAGER_KEY = "dagster/io_manager_key"
"""Metadata key that names the IO manager of an asset, for code that has only its spec."""

_URI_KEY = "dagster/uri"

PLACED_KEY = "dagster_delta/placed_by"
"""Metadata key that names the IO manager which places an asset: a `dagster/uri` beside it is only
what was known of the location when definitions were loaded."""

DATA_VERSION_TAG = "dagster/data_version"

DEFAULT_HISTORY = 5
"""Number of commits that events show by default."""

_RUN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_SPECIAL = re.compile(r"[\\`*_\[\]<>|#~!&]")
"""Markdown markup to escape; a commit may contain any text."""

_LONGEST_TEXT = 100


def op_name(key: dg.AssetKey, prefix: str = "") -> str:
    """Name of the op of an asset that Dagster accepts, unique per key."""
    parts = [re.sub(r"\W|__", "_", part, flags=re.ASCII) for part in key.path]
    name = prefix + "__".join(parts)
    if parts == list(key.path):
        return name
    return f"{name}_{sha256(key.to_user_string().encode()).hexdigest()[:8]}"


def definition_metadata(uri: str, **further: RawMetadataValue) -> RawMetadata:
    """Metadata for the definition of the asset of a table: its location, unless that holds a
    password, and further keys such as `table_name` and `column_schema`.
    """
    path = local_root(uri) if scheme_of(uri) in {None, "file"} else uri
    return shown(
        {
            _URI_KEY: None if holds_password(uri) else path,
            **{f"dagster/{key}": value for key, value in further.items()},
        }
    )


def declared_location(metadata: Mapping[str, object]) -> str | None:
    """Location of the table of an asset by its metadata `dagster/uri`; None if there is none, or if
    an IO manager has given it.
    """
    uri = metadata.get(_URI_KEY)
    return None if uri is None or PLACED_KEY in metadata else str(getattr(uri, "value", uri))


def check_stored_location(metadata: Mapping[str, object], stored: str, *, asset: str) -> None:
    """Refuse to store an asset elsewhere than where its metadata says that its table is."""

    def one_spelling(uri: str) -> str:
        return canonical_uri(str(definition_metadata(uri).get(_URI_KEY))).rstrip("/")

    declared = declared_location(metadata)
    if declared is not None and one_spelling(declared) != one_spelling(stored):
        raise InvalidArgument(
            f"the metadata {_URI_KEY} of asset {asset} says that its table is {declared}, and its "
            f"IO manager stores it at {stored}: omit {_URI_KEY}, or let root_uri, schema and "
            "table_name name that location; an asset that writes its table itself is annotated "
            "with -> None"
        )


def columns_from_log(
    uri: str, storage_options: Mapping[str, Any], key: dg.AssetKey
) -> dg.TableSchemaMetadataValue | None:
    """The columns of a table, read while definitions are loaded; None if there is no table, or if
    it cannot be opened, which is logged.
    """
    try:
        snapshot = DeltaTable(uri, storage_options=storage_options).snapshot()
        return dg.MetadataValue.table_schema(table_schema(snapshot))
    except TableNotFound:
        return None
    except (DeltaError, OSError) as error:
        _log.warning("the columns of %s are not shown: %s", key.to_user_string(), error)
        return None


def table_schema(table: Snapshot | DeclaredTable) -> dg.TableSchema:
    """The columns of a table with their types in SQL, which the UI has icons for, nullability,
    comments and constraints.
    """
    configuration = table.configuration
    invariants = dict(configuration.invariants)
    columns = [
        dg.TableColumn(
            name=field.name,
            type=sql_type_name(field.data_type),
            description=field.comment,
            constraints=dg.TableColumnConstraints(
                nullable=field.nullable,
                other=[rule] if (rule := invariants.get(field.name)) else [],
            ),
            tags={"delta/partition_column": ""}
            if field.name in configuration.partition_columns
            else None,
        )
        for field in configuration.schema
    ]
    checks = [f"{name}: {sql}" for name, sql in configuration.properties.constraints.items()]
    return dg.TableSchema(
        columns, constraints=dg.TableConstraints(other=checks) if checks else None
    )


def table_metadata(snapshot: Snapshot, *, uri: str, table_name: str | None) -> RawMetadata:
    """Metadata about one version of a table; `table_name` is `schema.table`, if there is such a
    name.
    """
    return shown(
        {
            "delta/version": snapshot.version,
            **_find_totals(snapshot),
            "dagster/last_updated_timestamp": dg.MetadataValue.timestamp(
                snapshot.timestamp_ms / 1000
            ),
            "dagster/table_name": table_name,
            "dagster/uri": uri,
            "dagster/column_schema": dg.MetadataValue.table_schema(table_schema(snapshot)),
            DETAILS: {
                "description": snapshot.metadata.description,
                "partition_columns": ", ".join(snapshot.configuration.partition_columns),
                "clustering_columns": ", ".join(clustering_names(snapshot)),
            },
        }
    )


def _find_totals(snapshot: Snapshot) -> dict[str, int | None]:
    """Files, bytes and rows, if the log has them; for a large table, figures that are not in its
    checksum are omitted.
    """
    names = ("delta/live_files", "dagster/size_bytes", "dagster/row_count")
    found: tuple[int | None, ...] = ()
    if not snapshot.is_large_and_unread:
        found = (snapshot.num_files, snapshot.size_bytes, snapshot.num_records)
    elif snapshot.checksum is not None:
        found = (snapshot.checksum.num_files, snapshot.checksum.size_bytes, None)
    return dict(zip(names, found, strict=False))


def data_version_tags(
    snapshot: Snapshot, instance: dg.DagsterInstance, key: dg.AssetKey
) -> dict[str, str]:
    """The tag of an event of an asset whose table is at a version.

    It reads the newest commits until one changed rows, or until the version of the latest event of
    the asset.
    """
    name, _ = latest_data_change(snapshot, instance, key, lambda _: True)
    return {DATA_VERSION_TAG: name}


def latest_data_change(
    snapshot: Snapshot,
    instance: dg.DagsterInstance,
    key: dg.AssetKey,
    is_shown: Callable[[str], bool],
) -> tuple[str, CommitSummary | None]:
    """The data version of an asset whose table is at a version, and the commit of the last change
    of rows; None if that was cleaned up, or if an event has this data version and `is_shown` says
    that the commit is not needed: then it is not read.
    """
    cursor = LogCursor(version=snapshot.version, table_id=snapshot.metadata.id)
    at, known = _known_data_version(cursor, instance, key)
    after = at if is_shown(known) else NOTHING_SEEN
    version, commit = last_data_change(snapshot.store, cursor, after=after)
    if commit is None and version <= at:
        return known, None
    return data_version(snapshot.metadata.id, version), commit


def _known_data_version(
    cursor: LogCursor, instance: dg.DagsterInstance, key: dg.AssetKey
) -> tuple[int, str]:
    """The version of a table up to which an event of its asset says how its rows are named, and
    that name; `NOTHING_SEEN` and no name if no event does.
    """
    at, known = NOTHING_SEEN, ""
    for fetch in (instance.fetch_materializations, instance.fetch_observations):
        for record in fetch(key, limit=1).records:
            event = record.asset_materialization or record.asset_observation
            assert event is not None  # noqa: S101  one of them
            name = (event.tags or {}).get(DATA_VERSION_TAG, "")
            version = event.metadata.get("delta/version")
            if (
                # An observation of a partition names its rows alone.
                (event.partition is None or record.asset_materialization is not None)
                # Others are of another table, or were set by the asset itself.
                and name.startswith(f"{cursor.table_id}:")
                and isinstance(version, dg.IntMetadataValue)
                and version.value is not None
                and at < version.value <= cursor.version
            ):
                at, known = version.value, name
    return at, known


def history_metadata(snapshot: Snapshot, commits: int) -> dict[str, dg.MarkdownMetadataValue]:
    """The latest commits of a table as metadata `delta/history`; empty if `commits` is 0.

    It reads one file per commit. The times are those that the writers recorded.
    """
    if commits < 1:
        return {}
    return {
        "delta/history": dg.MetadataValue.md(history_markdown(latest_commits(snapshot, commits)))
    }


def history_markdown(entries: Sequence[HistoryEntry]) -> str:
    """A table of commits with links to their runs, in the order given."""
    head = ["| version | time (UTC) | operation | rows | by | |", "|---:|---|---|---|---|---|"]
    return "\n".join([*head, *(_format_line(entry) for entry in entries)])


def _format_line(entry: HistoryEntry) -> str:
    rows = rows_by_deed(entry.operation_metrics)
    cells = [
        str(entry.version),
        spell_time(entry.timestamp_ms),
        plain_markdown(entry.operation),
        ", ".join(f"{count:,} {deed}" for deed, count in rows.items() if count),
        _describe_author(entry),
        plain_markdown(entry.user_metadata),
    ]
    return f"| {' | '.join(cells)} |"


def spell_time(timestamp_ms: int) -> str:
    """A time in UTC; empty if it is none that a calendar has, as a writer may record it."""
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    try:
        return f"{epoch + dt.timedelta(milliseconds=timestamp_ms):%Y-%m-%d %H:%M:%S}"
    except OverflowError:
        return ""


def _describe_author(entry: HistoryEntry) -> str:
    """The run, its asset and partitions; for commits by other writers, the engine."""
    info = entry.commit_info
    run_id = info.get("dagsterRunId")
    if not isinstance(run_id, str) or _RUN_ID.fullmatch(run_id) is None:
        return plain_markdown(entry.engine_info)
    what = ": ".join(
        plain_markdown(info[key]) for key in ("dagsterAsset", "dagsterPartitions") if key in info
    )
    # Relative, since a run does not know the address of the UI.
    return f"[{run_id[:8]}](/runs/{run_id}) {what}".rstrip()


def plain_markdown(value: object) -> str:
    """The value as text on one line, shortened, without markup; empty for None."""
    if value is None:
        return ""
    text = " ".join(str(value).split())
    if len(text) > _LONGEST_TEXT:
        text = text[:_LONGEST_TEXT] + "…"
    return _SPECIAL.sub(lambda found: "&#" + str(ord(found[0])) + ";", text)
