"""Symlink manifests: lists of data files, by which Presto, Athena and Hive read a table.

They have the layout of delta-spark: `_symlink_format_manifest/manifest`, or one such file for each
partition, with the absolute URI of one data file per line.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from dagster_delta.errors import UnsupportedFeature
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.commit_file import decode_commit
from dagster_delta.protocol.values.partition_values import decode_path, partition_directory
from dagster_delta.storage.locations import spark_path
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.log.reader import check_writable, read_commits_after
from dagster_delta.table.read.snapshot import Snapshot

_LOG = logging.getLogger(__name__)

_MAX_ROUNDS = 10
_DIRECTORY = "_symlink_format_manifest"
_Values = dict[str, str | None]


def follow_commits(snapshot: Snapshot, commits: Sequence[tuple[int, bytes]]) -> None:
    """Write the manifests that some commits up to a version change; an observer of commits."""
    generate_manifests(snapshot, _find_changed_manifests(commits, snapshot.configuration))


def generate_manifests(snapshot: Snapshot, only: Collection[str] | None = None) -> tuple[str, ...]:
    """Write the manifests of a version, and delete those of partitions without files.

    Commits made meanwhile may have written newer manifests, which were replaced, so the manifests
    that they change are written again. After some rounds a warning is logged instead. `only` are
    paths of the manifests to write, None for all. Returns the paths of those that were written,
    relative to the root. Column mapping and deletion vectors, which readers of manifests do not
    know, are an UnsupportedFeature.
    """
    written: dict[str, None] = {}
    num_rounds = 0
    while only is None or only:
        if num_rounds == _MAX_ROUNDS:
            _LOG.warning(
                "symlink manifests of %s may lack changes of the latest commits up to version %d: "
                "other writers committed during each of %d attempts to write them; call "
                "generate_symlink_manifests() when fewer writers are at work",
                snapshot.store.location.uri,
                snapshot.version,
                _MAX_ROUNDS,
            )
            break
        num_rounds += 1
        written |= dict.fromkeys(_write_manifests(snapshot, only))
        latest = snapshot.update()
        only = _find_changed_again(snapshot, latest, only)
        snapshot = latest
    return tuple(written)


def _find_changed_again(
    snapshot: Snapshot, latest: Snapshot, only: Collection[str] | None
) -> Collection[str] | None:
    """Those of some manifests that commits after a version change; None for all."""
    num_commits = latest.version - snapshot.version
    commits = read_commits_after(snapshot.store, snapshot.version, at_most=num_commits)
    if commits is None or len(commits) < num_commits:
        # The log was cleaned up meanwhile.
        return only
    changed = _find_changed_manifests(commits, latest.configuration)
    if changed is None:
        return only
    return changed if only is None else changed.intersection(only)


def _write_manifests(snapshot: Snapshot, only: Collection[str] | None) -> Collection[str]:
    store, configuration = snapshot.store, snapshot.configuration
    check_writable(store, configuration, snapshot.version)
    if configuration.column_mapping_mode != "none":
        raise UnsupportedFeature(
            "the table has column mapping, and readers of symlink manifests would not find its "
            "columns in the files: read the table by its log",
            table=store.location.uri,
            version=snapshot.version,
        )
    files = snapshot.live_files(["path", "partition_values", "deletion_vector"])
    if files["deletion_vector"].null_count < files.num_rows:
        raise UnsupportedFeature(
            "files of the table have deletion vectors, and readers of symlink manifests would show "
            'deleted rows: call reorg(purge=["deletion_vectors"]) and unset '
            "delta.enableDeletionVectors first",
            table=store.location.uri,
            version=snapshot.version,
        )
    lines: dict[str, list[str]] = {}
    paths, values = files["path"].to_pylist(), files["partition_values"].to_pylist()
    for path, found in zip(paths, values, strict=True):
        manifest = _locate_manifest(configuration, dict(found or ()))
        if only is None or manifest in only:
            uri = spark_path(store.resolve_uri(decode_path(path)))
            lines.setdefault(manifest, []).append(uri)
    whole = f"{_DIRECTORY}/manifest"
    if not configuration.partition_columns and (only is None or whole in only):
        # An empty table has an empty manifest.
        lines.setdefault(whole, [])
    for manifest, uris in lines.items():
        store.put(manifest, "".join(f"{uri}\n" for uri in uris).encode())
    stale = _list_manifests(store) if only is None else only
    store.delete([path for path in stale if path not in lines])
    return lines


def _find_changed_manifests(
    commits: Sequence[tuple[int, bytes]], configuration: TableConfiguration
) -> set[str] | None:
    """Paths of the manifests that some commits change; None for all."""
    changed: set[str] = set()
    for version, data in commits:
        actions = decode_commit(data, version=version)
        if actions.metadata is not None:
            return None
        values = [add.partition_values for add in actions.adds]
        for found in (*values, *(remove.partition_values for remove in actions.removes)):
            if found is None:
                return None
            changed.add(_locate_manifest(configuration, found))
    return changed


def _locate_manifest(configuration: TableConfiguration, values: _Values) -> str:
    directory = partition_directory(
        {name: values.get(name) for name in configuration.partition_columns}
    )
    return f"{_DIRECTORY}/{directory}/manifest" if directory else f"{_DIRECTORY}/manifest"


def _list_manifests(store: ObjectStore) -> list[str]:
    found = (meta.path for meta in store.list_recursive(_DIRECTORY))
    return [path for path in found if path.rpartition("/")[2] == "manifest"]
