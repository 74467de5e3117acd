"""Commits as datasets of OpenLineage, and the events of assets that write them.

The dataset is plain JSON and needs nothing; events are sent by the package `openlineage-python`,
which the user configures.

Spec: OpenLineage 2-0-2, its naming of datasets, and the facets that `_FACETS` names.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dagster import InputContext, OutputContext, TableColumnLineage

from dagster_delta._version import __version__
from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.io.observers import TableObserver
from dagster_delta.orchestration.io.run_facts import run_facts, step_notes
from dagster_delta.storage import canonical_uri
from dagster_delta.table.read.history import history

if TYPE_CHECKING:
    from dagster_delta.orchestration.io.asset_writer import WrittenAsset
    from dagster_delta.table.read.snapshot import Snapshot

_PRODUCER = f"https://pypi.org/project/dagster-delta-protocol/{__version__}"
_FACETS = {
    "schema": "1-2-0/SchemaDatasetFacet",
    "version": "1-0-1/DatasetVersionDatasetFacet",
    "storage": "1-0-1/StorageDatasetFacet",
    "columnLineage": "1-2-0/ColumnLineageDatasetFacet",
    "outputStatistics": "1-0-2/OutputStatisticsOutputDatasetFacet",
    "parent": "1-2-0/ParentRunFacet",
}
_STATISTICS = {
    "rowCount": ("numOutputRows",),
    "size": ("numOutputBytes", "numTargetBytesAdded", "numAddedBytes"),
    "fileCount": ("numFiles", "numTargetFilesAdded", "numAddedFiles"),
}
"""Fields of the statistics to metrics of the commit, the first that it has."""


def openlineage_dataset(
    snapshot: Snapshot,
    column_sources: Mapping[str, Sequence[tuple[str, str]]] | None = None,
) -> dict[str, Any]:
    """The version of a table as an output dataset of OpenLineage: columns, version, and the rows,
    bytes and files that its commit wrote, if its writer recorded them.

    Args:
        snapshot: the version.
        column_sources: column to the columns that it is computed from, each as the location of its
            table and its name.

    Returns:
        JSON with `namespace`, `name`, `facets` and `outputFacets`.

    Raises:
        StorageFailure, VersionNotFound: the commit cannot be read.

    Examples:
        openlineage_dataset(DeltaTable("s3://lake/raw/flights").snapshot())
    """
    dataset = _make_dataset(snapshot)
    if column_sources:
        fields = {
            column: {
                "inputFields": [{**_name_dataset(uri), "field": name} for uri, name in sources]
            }
            for column, sources in column_sources.items()
        }
        dataset["facets"]["columnLineage"] = _make_facet("columnLineage", fields=fields)
    (commit,) = history(snapshot, 1)
    metrics = commit.operation_metrics
    found = {
        field: int(next(metrics[name] for name in names if name in metrics))
        for field, names in _STATISTICS.items()
        if any(name in metrics for name in names)
    }
    output = {"outputStatistics": _make_facet("outputStatistics", **found)} if found else {}
    return {**dataset, "outputFacets": output}


class OpenLineageObserver(TableObserver):
    """Sends an event for each write, with the tables that its step has read."""

    def before_write(self) -> None:
        """Check that events can be sent."""
        try:
            import openlineage.client  # noqa: F401
        except ModuleNotFoundError as error:
            raise InvalidArgument(
                "openlineage of the DeltaIOManager needs the package openlineage-python: pip "
                "install 'dagster-delta-protocol[openlineage]'"
            ) from error

    def after_write(self, context: OutputContext, written: WrittenAsset) -> None:
        """Send START and COMPLETE of the step that wrote a version; a failure is only a warning."""
        if written.skipped_because is not None:
            return
        try:
            from openlineage.client import OpenLineageClient, event_v2

            given = getattr(context.output_metadata.get("dagster/column_lineage"), "value", None)
            client = OpenLineageClient()
            lineage = given or written.column_lineage
            for event in _make_events(event_v2, context, written.snapshot, lineage):
                client.emit(event)
            client.close()
        except Exception as error:  # noqa: BLE001  the rows are written, and a retry repeats them
            context.log.warning(f"the OpenLineage events were not sent: {error}")

    def after_read(self, context: InputContext, snapshot: Snapshot) -> None:
        """Remember a table that the running step loads, for the event of its output."""
        if (notes := step_notes()) is not None and context.has_asset_key:
            inputs = notes.setdefault("openlineage", {})
            inputs[context.asset_key.to_user_string()] = {
                **_make_dataset(snapshot),
                "uri": snapshot.store.location.uri,
            }


def _make_events(
    event_v2: Any,  # noqa: ANN401  the module
    context: OutputContext,
    snapshot: Snapshot,
    lineage: TableColumnLineage | None,
) -> list[Any]:
    inputs = (step_notes() or {}).get("openlineage", {})
    sources = {
        column: [
            (str(inputs[key]["uri"]), dep.column_name)
            for dep in deps
            if (key := dep.asset_key.to_user_string()) in inputs
        ]
        for column, deps in ({} if lineage is None else lineage.deps_by_column).items()
    }
    output = openlineage_dataset(
        snapshot, {name: found for name, found in sources.items() if found}
    )
    facts = run_facts(context, ())
    # One run of Dagster has several steps, and a run of OpenLineage is one of one job.
    run_id = str(uuid.uuid5(uuid.NAMESPACE_URL, f"dagster:{facts.run_id}:{facts.output}"))
    parent: Any = _make_facet(
        "parent",
        run={"runId": facts.run_id},
        job={"namespace": "dagster", "name": facts.job_name},
    )
    now = dt.datetime.now(dt.UTC).isoformat()
    return [
        event_v2.RunEvent(
            eventType=state,
            eventTime=now,
            run=event_v2.Run(run_id, {"parent": parent} if facts.run_id else {}),
            job=event_v2.Job("dagster", facts.output, {}),
            inputs=[
                event_v2.InputDataset(source["namespace"], source["name"], facets=source["facets"])
                for source in inputs.values()
            ],
            outputs=[event_v2.OutputDataset(**output)],
            producer=_PRODUCER,
        )
        for state in (event_v2.RunState.START, event_v2.RunState.COMPLETE)
    ]


def _make_dataset(snapshot: Snapshot) -> dict[str, Any]:
    columns = [
        {"name": field.name, "type": str(field.data_type)}
        | ({"description": field.comment} if field.comment else {})
        for field in snapshot.schema
    ]
    facets = {
        "schema": _make_facet("schema", fields=columns),
        "version": _make_facet("version", datasetVersion=str(snapshot.version)),
        "storage": _make_facet("storage", storageLayer="delta", fileFormat="parquet"),
    }
    return {**_name_dataset(snapshot.store.location.uri), "facets": facets}


def _name_dataset(uri: str) -> dict[str, str]:
    scheme, separator, rest = canonical_uri(uri).partition("://")
    if not separator or scheme == "file":
        return {"namespace": "file", "name": rest or uri}
    authority, _, path = rest.partition("/")
    return {"namespace": f"{scheme}://{authority}", "name": path.rstrip("/") or "/"}


def _make_facet(name: str, **content: object) -> dict[str, object]:
    version_and_class = _FACETS[name]
    definition = version_and_class.partition("/")[2]
    url = f"https://openlineage.io/spec/facets/{version_and_class}.json#/$defs/{definition}"
    return {"_producer": _PRODUCER, "_schemaURL": url, **content}
