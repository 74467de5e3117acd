"""A job on a branch: lists its tables, compares them with production, publishes or drops them."""

# No `from __future__ import annotations`: Dagster reads the annotations of ops itself.

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import dagster as dg
from pydantic import Field

from dagster_delta.errors import DeltaError, InvalidArgument
from dagster_delta.nearest_name import nearest_name
from dagster_delta.orchestration.io.io_manager import DeltaIOManager, delta_io_manager
from dagster_delta.orchestration.known_fields import KnownFieldsOnly, checked_arguments
from dagster_delta.orchestration.maintenance.jobs import (
    changed_partitions,
    one_config,
    report_table,
)
from dagster_delta.orchestration.maintenance.maintained_tables import (
    Asset,
    MaintainedTable,
    config_with_defaults,
    maintained_tables,
)
from dagster_delta.orchestration.maintenance.operations import commit_info_of_op
from dagster_delta.orchestration.metadata_keys import counted
from dagster_delta.orchestration.row_tables import MAX_COLUMNS, first_rows, shown_value
from dagster_delta.orchestration.table_metadata import (
    data_version_tags,
    plain_markdown,
    spell_time,
)
from dagster_delta.protocol.schema import fold_name
from dagster_delta.storage import absolute_uri
from dagster_delta.table.branches.branch import Branch
from dagster_delta.table.branches.publish import Publication
from dagster_delta.table.delta_table import CommitResult, DeltaTable
from dagster_delta.table.read.change_data_feed import COMMIT_TIMESTAMP_COLUMN, MAX_COMPARED_BYTES

_MAX_NAMED = 20
_MAX_SHOWN_ROWS = 10


class DeltaBranchConfig(KnownFieldsOnly, dg.Config):
    """What to do with a branch."""

    action: Literal["list", "diff", "publish", "rebase", "drop"] = Field(
        default="list",
        description="list: the branches, and the tables of this one; diff: its tables beside "
        "production's; publish: production gets each of them in one commit; rebase: they begin "
        "again with production's newest versions; drop: delete the branch with its tables.",
    )
    branch: str | None = Field(
        default=None, description="The branch. Default: that of the IO manager."
    )
    tables: list[str] = Field(
        default=[],
        description="Keys of assets, as a/b, or locations in production. Default: every table that "
        "the branch has.",
    )
    dry_run: bool = Field(
        default=True,
        description="Only report what publish, rebase and drop would do. Set to false to do it.",
    )
    max_bytes: int | None = Field(
        default=MAX_COMPARED_BYTES,
        description="publish: the most bytes of files of a table that are compared to find the "
        "rows which the branch has changed, for the change data feed of production. null: no "
        "limit.",
    )


@checked_arguments(dg.GraphDefinition.to_job)
def delta_branch_job(
    name: str = "delta_branch",
    *,
    assets: Iterable[Asset] = (),
    io_manager_key: str = "io_manager",
    config: DeltaBranchConfig | None = None,
    **job_options: Any,
) -> dg.JobDefinition:
    """A job that lists, compares, publishes, rebases or drops the tables of a branch.

    A run names the action and the branch. By default it only reports. A published asset is reported
    as materialized in production. A run that was killed while it published is simply repeated.

    Args:
        name: of the job.
        assets: assets stored by the IO manager; a table of the branch that is none of theirs is
            published without an event.
        io_manager_key: key of the `DeltaIOManager`, with or without a branch of its own.
        config: default config of the runs.
        job_options: of `dg.GraphDefinition.to_job`: description, tags, executor_def, …

    Examples:
        delta_branch_job(assets=[flights, weather])
    """
    assets = tuple(assets)
    known = maintained_tables(assets, None, None, None) if assets else ()

    form = config_with_defaults(DeltaBranchConfig, dict(config or DeltaBranchConfig()))

    @dg.op(name=f"{name}__run", out=dg.Out(dg.Nothing), required_resource_keys={io_manager_key})
    def work(context: dg.OpExecutionContext, config: DeltaBranchConfig) -> None:
        manager = delta_io_manager(context.resources, io_manager_key, asset=f"of the job {name}")
        _BranchRun(context, manager, known, config).run()

    @dg.graph(name=f"{name}_graph")
    def working() -> None:
        work.alias("branch")()

    given = {
        "description": "Lists, compares, publishes, rebases or drops the tables of a branch.",
        "config": one_config(["branch"], form),
        **job_options,
    }
    return working.to_job(name=name, **given)


class _BranchRun:
    """One run of the job."""

    def __init__(
        self,
        context: dg.OpExecutionContext,
        manager: DeltaIOManager,
        known: Iterable[MaintainedTable],
        config: DeltaBranchConfig,
    ) -> None:
        self._context, self._manager, self._config = context, manager, config
        self._assets = {
            absolute_uri(manager.production_uri(table.asset_key, table.metadata)): table
            for table in known
            if table.asset_key is not None and table.uri is None
        }

    def run(self) -> None:
        action, facts = self._config.action, {}
        if action in ("list", "drop") and self._config.tables:
            raise InvalidArgument(
                f"{action} takes no tables: it is about the whole branch; leave tables out"
            )
        if action == "list":
            text = self._list()
        else:
            branch = self._manager.find_branch(self._config.branch)
            if branch is None:
                raise InvalidArgument(
                    "name the branch in the config of the run, or set branch of the IO manager"
                )
            text, facts = self._act(branch), {"delta/branch": branch.name}
        self._context.log.info(text)
        self._context.add_output_metadata({"delta/report": dg.MetadataValue.md(text), **facts})

    def _act(self, branch: Branch) -> str:
        """Do what the run is asked to do with the branch; the report."""
        action, is_dry = self._config.action, self._config.dry_run
        if branch.created_ms is None:
            text = f"there is no branch {branch.name!r} at {branch.uri}"
            if action == "drop":
                return f"nothing to drop: {text}"
            raise InvalidArgument(
                f"{text}: it begins with the first asset that is materialized with it"
            )
        if action == "drop":
            files = counted(len(branch.drop(dry_run=is_dry)), "file")
            return f"{files} of {branch.uri} {'would be' if is_dry else 'were'} deleted"
        uris = self._find_tables(branch)
        if action == "rebase":
            return self._rebase(branch, uris)
        if action == "publish" and not is_dry:
            return self._publish(branch, uris)
        return "\n".join(self._compare(branch, uri) for uri in uris) or "The branch has no tables."

    def _rebase(self, branch: Branch, uris: list[str]) -> str:
        options, is_dry = self._manager.storage_options.to_options(), self._config.dry_run
        known = [uri for uri in uris if DeltaTable.is_delta_table(uri, storage_options=options)]
        for uri in known if not is_dry else ():
            version = branch.rebase(uri).version()
            self._context.log.info(f"{self._name(uri)} began again, as version {version}")
        begun = f"{counted(len(known), 'table')} {'would begin' if is_dry else 'began'} again"
        left = len(uris) - len(known)
        own = f"; {left} in the branch alone stay as they are" if left else ""
        return f"{begun} from production{own}"

    def _find_tables(self, branch: Branch) -> list[str]:
        named = {table.name: uri for uri, table in self._assets.items()}
        tables = branch.tables()
        for name in self._config.tables:
            if name not in named and absolute_uri(name) not in tables:
                near = nearest_name(name, [*map(self._name, tables), *named])
                meant = "" if near is None else f": did you mean {near}?"
                raise InvalidArgument(
                    f"{name} is neither an asset of the job nor the location in production of a "
                    f"table of the branch {branch.name!r}{meant}"
                )
        return [named.get(name, name) for name in self._config.tables] or tables

    def _name(self, uri: str) -> str:
        table = self._assets.get(absolute_uri(uri))
        return uri if table is None else table.name

    def _list(self) -> str:
        lines = ["| branch | since (UTC) | tables |", "|---|---|---|"]
        for branch in self._manager.list_branches():
            names = ", ".join(map(self._name, branch.tables()[:_MAX_NAMED])) or "none yet"
            name = plain_markdown(branch.name)
            lines.append(f"| {name} | {spell_time(branch.created_ms or 0)} | {names} |")
        return "\n".join(lines)

    def _compare(self, branch: Branch, uri: str) -> str:
        try:
            planned = branch.diff(uri)
            text = planned.to_markdown() + "\n".join(self._render_changes(uri, planned))
        except DeltaError as error:
            text = f"It cannot be published: {error}"
        return f"### {self._name(uri)}\n\n{text}"

    def _render_changes(self, uri: str, planned: Publication) -> Iterator[str]:
        """The first rows that the branch has changed, as lines of a table."""
        try:
            rows = first_rows(planned.changes().to_batches(), _MAX_SHOWN_ROWS)
        except (DeltaError, OSError) as error:
            yield f"\nThe changed rows are not shown: {error}\n"
            return
        if not rows:
            return
        known, masked = self._assets.get(absolute_uri(uri)), frozenset[str]()
        if known is not None and known.asset_key is not None:
            options = self._manager.asset_options(known.asset_key, known.metadata)
            masked = frozenset(map(fold_name, options.masked_columns))
        names = [name for name in rows[0] if name != COMMIT_TIMESTAMP_COLUMN][:MAX_COLUMNS]
        yield f"\nThe first changed rows, {_MAX_SHOWN_ROWS} at most:\n"
        yield f"| {' | '.join(map(plain_markdown, names))} |"
        yield "|---" * len(names) + "|"
        for row in rows:
            cells = (shown_value(row[name], masked=fold_name(name) in masked) for name in names)
            yield f"| {' | '.join(map(plain_markdown, cells))} |"
        yield ""

    def _publish(self, branch: Branch, uris: list[str]) -> str:
        results = branch.publish(
            uris,
            commit_info=commit_info_of_op(self._context, branch.name),
            on_published=self._report_published,
            max_bytes=self._config.max_bytes,
        )
        skipped = sum(result.skipped for result in results.values())
        done = counted(len(results) - skipped, "table")
        return f"{done} published, {skipped} had nothing to publish"

    def _report_published(self, uri: str, result: CommitResult) -> None:
        if not result.skipped:
            self._context.log.info(f"published {self._name(uri)} as version {result.version}")
        maintained = self._assets.get(absolute_uri(uri))
        if maintained is None or maintained.asset_key is None:
            return
        key, instance = maintained.asset_key, self._context.instance
        if result.skipped:
            # A run that was killed may have published the table, and not reported it.
            *_, last = changed_partitions(self._context, maintained, result.snapshot)
            of = key if last is None else dg.AssetRecordsFilter(key, asset_partitions=[last])
            records = instance.fetch_materializations(of, limit=1).records
            event = records[0].asset_materialization if records else None
            known = {} if event is None else event.tags or {}
            if data_version_tags(result.snapshot, instance, key).items() <= known.items():
                return
        table = DeltaTable(uri, storage_options=self._manager.storage_options.to_options())
        published = f"Published as version {table.version()}"
        report_table(self._context, maintained, table, {}, described=published)
