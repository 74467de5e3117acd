"""The IO manager: an asset's return value becomes a commit, an input becomes a scan.

Tables are at `<root_uri>/<schema>/<asset name>`, the same location as in earlier Delta IO managers;
those of op outputs without an asset at `<root_uri>/<schema>/<run id>-<step>-<output>`. Those of a
catalog are at `catalog://<catalog>.<schema>.<asset name>`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import ConfigDict, Field

from dagster_delta.errors import (
    AuditFailed,
    ExpectationFailed,
    InvalidArgument,
    TableNotFound,
)
from dagster_delta.orchestration.branches import (
    BranchedTables,
    branch_facts,
    branch_metadata,
)
from dagster_delta.orchestration.catalogs import CatalogResource, WritableTables
from dagster_delta.orchestration.io.asset_options import (
    ASSET_KEYS,
    MERGE_KEYS,
    AssetOptions,
    SchemaMode,
    WriteMode,
    check_mode,
    read_asset_options,
    read_input_options,
)
from dagster_delta.orchestration.io.asset_writer import (
    AssetValue,
    AssetWrite,
    NoRows,
    NothingWritten,
    PartitionFrames,
    Rows,
)
from dagster_delta.orchestration.io.expectation_report import report_failure
from dagster_delta.orchestration.io.merge_config import MergeConfig
from dagster_delta.orchestration.io.observers import TableObserver
from dagster_delta.orchestration.io.openlineage import OpenLineageObserver
from dagster_delta.orchestration.io.output_metadata import (
    input_facts,
    log_input_metadata,
    report_nothing,
    report_write,
)
from dagster_delta.orchestration.io.run_facts import (
    asset_description,
    current_execution,
    partitions_of_run,
    run_facts,
)
from dagster_delta.orchestration.io.table_descriptions import (
    column_comments,
    update_descriptions,
)
from dagster_delta.orchestration.io.table_owner import check_read
from dagster_delta.orchestration.io.type_handlers import (
    TABLE_TYPES,
    TableInput,
    TypeHandler,
    handler_named,
    rows_to_write,
    takes_none,
    type_handler_of,
)
from dagster_delta.orchestration.op_outputs import PLACE_PROPERTY, RUN_PROPERTY
from dagster_delta.orchestration.partitions.mapping import keys_of_input
from dagster_delta.orchestration.partitions.partitions import partition_selector
from dagster_delta.orchestration.partitions.predicates import owned_slice, partition_slice
from dagster_delta.orchestration.resources import (
    COLUMN_CHANGE_DESCRIPTION,
    SparkSessionResource,
    spark_session_of,
)
from dagster_delta.orchestration.row_tables import hidden_examples
from dagster_delta.orchestration.spark_progress import watch_spark
from dagster_delta.orchestration.storage_options import AnyStorageOptions, LocalStorageOptions
from dagster_delta.orchestration.table_metadata import (
    DEFAULT_HISTORY,
    check_stored_location,
    declared_location,
)
from dagster_delta.storage import catalog_name, catalog_uri
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.programs import known_readers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_delta.table.read.scan import Scan
    from dagster_delta.table.slices import Slice


class DeltaIOManager(BranchedTables, dg.ConfigurableIOManager):
    """Stores assets as Delta tables, and loads tables as inputs.

    The value that an asset returns (a pyspark, pandas or polars frame, or any Arrow value) selects
    the engine that writes it; the annotation of an input selects its load type. An asset annotated
    `-> None` writes its table itself, if it has one; an asset that returns None without this
    annotation gets a warning.

    Metadata on an asset overrides this configuration, see `AssetOptions`; on an `AssetIn` it names
    the `columns`, a `where` filter or the `version` to read, see `InputOptions`.

    A partitioned asset names in its metadata the column that holds the partition, with
    `partition_expr`: a name, or for multi-partitions a mapping from dimension to name. Exactly the
    partitions of the run are replaced, appended to or read, and any other row is an error.

    Examples:
        @dg.asset(
            key_prefix=["raw"],
            partitions_def=dg.DailyPartitionsDefinition("2024-01-01"),
            metadata={"partition_expr": "day"},
        )
        def orders(context) -> pa.Table: ...

        dg.Definitions(
            assets=[orders],
            resources={"io_manager": DeltaIOManager(root_uri="s3://lake")},
        )
    """

    # Pydantic quotes invalid input in its errors, including storage options.
    model_config = ConfigDict(hide_input_in_errors=True)

    root_uri: str = Field(
        default="",
        description="Location under which the tables are stored; required without a catalog. With "
        "one: where new tables are stored that it does not manage.",
    )
    catalog: CatalogResource | None = Field(
        default=None,
        description="The catalog in which tables have names, such as a UnityCatalogResource. An "
        "asset's table is named by its metadata table, as catalog.schema.table, or by the last "
        "three parts of its key. A new table is managed by the catalog, unless root_uri or the "
        "metadata location says where it is.",
    )
    schema_: str | None = Field(
        default=None,
        alias="schema",
        description="Directory between the root and the table. Default: the last part of the "
        "asset's key prefix, or 'public'. Empty: none. With a catalog: catalog.schema.",
    )
    mode: WriteMode = Field(
        default="overwrite",
        description="overwrite: replace the table, or the partitions of the run; append: add "
        "rows; replace_using, replace_on: replace the rows that match new ones, by the columns or "
        "the condition of that name in the metadata; merge: update and insert rows according to "
        "merge_config; error, ignore: write only if there is nothing yet, otherwise fail or skip.",
    )
    merge_config: MergeConfig | None = Field(
        default=None, description="For the mode merge: the type of the merge and when rows match."
    )
    schema_mode: SchemaMode = Field(
        default="strict",
        description="strict: the data must have the table's columns; widen: also adopt wider "
        "types of the data, if the table has delta.enableTypeWidening; merge: also add new "
        "columns; overwrite: replace the table's schema with that of the data.",
    )
    storage_options: AnyStorageOptions = Field(
        default=LocalStorageOptions(), description="Storage options."
    )
    table_properties: dict[str, str] = Field(
        default={}, description="Table properties of new tables."
    )
    readers: list[str] | None = Field(
        default=None,
        description="Other programs that read the tables, such as deltalake and DuckDB: a change "
        "after which one of them gives wrong rows without an error is refused. It becomes the "
        "table property dagsterDelta.readers. Default: the programs that each table names.",
    )
    custom_metadata: dict[str, str] = Field(
        default={}, description="Recorded in the commitInfo of every commit."
    )
    show_history: int = Field(
        default=DEFAULT_HISTORY,
        ge=0,
        description="Number of latest commits that every materialization shows, each with a link "
        "to its run. It reads one file per commit.",
    )
    update_descriptions: bool = Field(
        default=False,
        description="Whether each write makes the description of the table, which a catalog shows, "
        "and the comments of its columns those of the asset: its description, and its metadata "
        "dagster/column_schema. New tables have the description in any case.",
    )
    openlineage: bool = Field(
        default=False,
        description="Send an OpenLineage event for each write, by the package openlineage-python, "
        "which takes its address from OPENLINEAGE_URL or openlineage.yml.",
    )
    enable_column_change: bool = Field(default=False, description=COLUMN_CHANGE_DESCRIPTION)
    default_load_type: str | None = Field(
        default=None,
        description="How to load inputs without an annotation: pyspark, pyarrow, pyarrow_reader, "
        "pandas, polars, polars_lazy, duckdb, delta_table, snapshot or scan, or the name of a "
        "TypeHandler.",
    )
    spark: dg.ConfigurableResource | None = Field(  # type: ignore[type-arg]  # of any value
        default=None,
        description="The Spark session that loads inputs: a SparkSessionResource, or another "
        "resource with a spark_session, such as those of dagster-pyspark. Default: the session of "
        "this process, or a new local one.",
    )

    def __init__(self, **data: Any) -> None:
        # Fail at definition time, before the first input without an annotation.
        if type(default := data.get("default_load_type")) is str:
            handler_named(default, (*type(self).type_handlers(), *TABLE_TYPES))
        if isinstance(readers := data.get("readers"), list):
            known_readers(readers)
        super().__init__(**data)
        _check_place(data)

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:  # noqa: ANN401
        """Write the value as one commit.

        Raises:
            PartitionMismatch: a row is outside the partitions of the run.
            DeltaError: the options, the data or the table do not fit.
        """
        name = _name_value(context)
        if obj is None and context.dagster_type.kind.name == "NOTHING":
            return
        observers = self._make_observers()
        for observer in observers:
            observer.before_write()
        value = self._wrap_value(context, obj)
        options = self._options_of_output(context, value, name)
        # Without rows, nothing has to say which of them belong to a partition.
        partitions = None if obj is None else _make_partitions_slice(context, options, name)
        if options.mode == "overwrite" and not value.has_own_mode:
            _check_overwrite(context, options, name, is_partitioned=partitions is not None)
        write = self._make_write(context, name, options, partitions)
        with hidden_examples(options.masked_columns), watch_spark(value.rows, context.log) as work:
            try:
                written = value.write(write)
            except (ExpectationFailed, AuditFailed) as error:
                if context.has_asset_key:
                    report_failure(context.asset_key, options, error)
                raise
        if isinstance(written, NothingWritten):
            report_nothing(context, written)
            return
        if options.update_descriptions:
            for text in update_descriptions(write, column_comments(context.definition_metadata)):
                context.log.warning(text)
        table_name = self._qualified_name(options, *_find_identity(context))
        facts = branch_metadata(self.find_branch(), written.snapshot)
        report_write(context, written, {**work, **facts}, table_name=table_name)
        for observer in observers:
            observer.after_write(context, written)

    def _make_observers(self) -> list[TableObserver]:
        return [OpenLineageObserver()] if self.openlineage else []

    def _options_of_output(
        self, context: dg.OutputContext, value: AssetValue, name: str
    ) -> AssetOptions:
        metadata = context.definition_metadata
        options = read_asset_options(metadata, self._make_defaults(), asset=name)
        noted = context.output_metadata
        if options.mode == "merge" and not value.has_own_mode:
            merge = {key: noted[key] for key in MERGE_KEYS & noted.keys()}
            options = read_asset_options(merge, options, asset=name)
            noted = {key: noted[key] for key in noted.keys() - merge.keys()}
        if unused := ASSET_KEYS & noted.keys():
            context.log.warning(
                f"{name} put the metadata {', '.join(sorted(unused))} on its output, which "
                "changes nothing about its table: options are metadata of the asset's definition"
            )
        if not value.has_own_mode:
            check_mode(options, metadata, asset=name)
        return options

    def _wrap_value(self, context: dg.OutputContext, obj: object) -> AssetValue:
        """The value with its writer, and its rows in a form that can be written."""

        def convert(rows: object) -> object:
            return rows_to_write(rows, _find_annotation(context), self.type_handlers())

        if obj is None:
            return NoRows(is_expected=context.dagster_type.kind.name == "NULLABLE")
        if isinstance(obj, AssetValue):
            return obj.converted(convert)
        rows = convert(obj)
        return PartitionFrames(rows) if isinstance(rows, dict) else Rows(rows)

    def _make_write(
        self,
        context: dg.OutputContext,
        name: str,
        options: AssetOptions,
        partitions: Slice | None,
    ) -> AssetWrite:
        facts = run_facts(context, () if partitions is None else partitions.parts)
        uri = self._stored_uri(options, *_find_identity(context))
        storage_options = self._options_to_write(uri, options)
        if context.has_asset_key:
            check_stored_location(context.definition_metadata, uri, asset=name)
        is_of_run = not context.has_asset_key and not (options.table_name or options.table)
        if is_of_run and facts.run_id is not None:
            place = "/".join(filter(None, options.table_path(*_find_identity(context))))
            marks = {RUN_PROPERTY: facts.run_id, PLACE_PROPERTY: place}
            options = options.with_values(table_properties={**options.table_properties, **marks})
        if (branch := self.find_branch()) is not None:
            branch.declare()
            if not is_of_run and branch.begin(uri) is None:
                marks = {**options.table_properties, **branch.new_table_properties(uri)}
                options = options.with_values(table_properties=marks)
            uri, storage_options = branch.table_uri(uri), dict(branch.storage_options)
        return AssetWrite(
            name=name,
            uri=uri,
            storage_options=storage_options,
            options=options,
            within=partitions or owned_slice(options.owned_rows, asset=name),
            is_partitioned=partitions is not None,
            idempotency=facts.transaction_id,
            commit_info=facts.commit_info(options.custom_metadata),
            description=asset_description(context),
            asset_key=name if context.has_asset_key else None,
        )

    def load_input(self, context: dg.InputContext) -> Any:  # noqa: ANN401
        """The input as its annotation says; None if the annotation allows it and the table does not
        exist.

        Raises:
            TableNotFound: the upstream asset was never materialized here.
            InvalidArgument: unsupported input annotation.
        """
        upstream = context.upstream_output
        metadata = {} if upstream is None else upstream.definition_metadata
        name = _name_value(context)
        options = read_asset_options(metadata, self._make_defaults(), asset=name)
        # Outside of a run, as by load_asset_value of Definitions, an input has no name.
        input_name = context.name if context.has_input_name else name
        wanted = read_input_options(context.definition_metadata, f"the input {input_name!r}")
        handler = type_handler_of(
            _find_annotation(context),
            self.default_load_type,
            name=input_name,
            handlers=(*self.type_handlers(), *TABLE_TYPES),
        )
        elsewhere = declared_location(metadata) if context.has_asset_key else None
        uri = elsewhere or self._stored_uri(options, *_find_identity(context))
        try:
            table = self._open_table(uri, name, wanted.version)
        except TableNotFound:
            if not takes_none(_find_annotation(context)):
                raise
            context.log.info(f"{name} has no Delta table yet: the input {input_name} is None")
            return None
        snapshot = table.snapshot(version=wanted.version)
        if context.has_asset_key and wanted.version is None and elsewhere is None:
            check_read(snapshot, name, options)
        partitions = _make_partitions_slice(context, options, name)
        within = partitions or owned_slice(options.owned_rows, asset=name)

        def scan_of(part: Slice | None) -> Scan:
            if part is None:
                return snapshot.scan(wanted.columns, wanted.where)
            return part.scan(snapshot, wanted.columns, wanted.where)

        scan = scan_of(within)
        context.log.debug("loading %s: %r", name, scan)

        def scans_by_partition() -> dict[str, Scan]:
            assert partitions is not None  # noqa: S101  it is called only then
            return {key: scan_of(partitions.narrowed((key,))) for key in partitions.parts}

        by_partition = None if partitions is None else scans_by_partition
        value = handler.load(TableInput(table, scan, lambda: self.spark_session, by_partition))
        facts = {**input_facts(scan, handler, value), **branch_facts(self.find_branch(), snapshot)}
        log_input_metadata(context, facts)
        for observer in self._make_observers():
            observer.after_read(context, snapshot)
        return value

    @staticmethod
    def type_handlers() -> Sequence[TypeHandler[Any]]:
        """The handlers of additional load types and return types; a subclass returns its own."""
        return ()

    def table_of(self, asset_key: dg.AssetKey, metadata: Mapping[str, object]) -> DeltaTable | None:
        """The table of an asset that is stored here; None if it does not exist yet.

        Args:
            asset_key: of the asset.
            metadata: definition metadata of the asset.

        Raises:
            InvalidArgument: the metadata is invalid.
            InvalidTable, UnsupportedFeature, StorageFailure: the table cannot be opened.
        """
        try:
            uri = self.production_uri(asset_key, metadata)
            return self._open_table(uri, asset_key.to_user_string())
        except TableNotFound:
            return None

    def written_table_of(
        self, asset_key: dg.AssetKey, metadata: Mapping[str, object]
    ) -> DeltaTable | None:
        """The table of an asset for a run that plans by it what it writes; None if it does not
        exist yet. In a branch, a table that was published begins again first.

        Args:
            asset_key: of the asset.
            metadata: definition metadata of the asset.

        Raises:
            DeltaError: as for `table_of`, or the table cannot begin again.
        """
        uri, branch = self.production_uri(asset_key, metadata), self.find_branch()
        if branch is not None and branch.find(uri) is not None:
            branch.begin(uri)
        return self.table_of(asset_key, metadata)

    @property
    def spark_session(self) -> SparkSession:
        """The Spark session that loads inputs, started if there is none.

        Raises:
            InvalidArgument: the resource `spark` has no session.
        """
        return spark_session_of(self.spark or SparkSessionResource())

    def asset_table_uri(self, asset_key: dg.AssetKey, metadata: Mapping[str, object]) -> str:
        """Location of the table of an asset: in the branch, if that has its own.

        Args:
            asset_key: of the asset.
            metadata: definition metadata of the asset.

        Raises:
            InvalidArgument: the metadata is invalid.
        """
        uri = self.production_uri(asset_key, metadata)
        branch = self.find_branch()
        if branch is not None and branch.find(uri) is not None:
            return branch.table_uri(uri)
        return uri

    def production_uri(self, asset_key: dg.AssetKey, metadata: Mapping[str, object]) -> str:
        """Location of the table of an asset in production.

        Args:
            asset_key: of the asset.
            metadata: definition metadata of the asset.

        Raises:
            InvalidArgument: the metadata is invalid.
        """
        options = self.asset_options(asset_key, metadata)
        stored = self._stored_uri(options, asset_key, asset_key.to_user_string())
        return declared_location(metadata) or stored

    def table_name(self, asset_key: dg.AssetKey, metadata: Mapping[str, object]) -> str:
        """Name of the table of an asset: `schema.table`, or that in the catalog.

        Args:
            asset_key: of the asset.
            metadata: definition metadata of the asset.

        Raises:
            InvalidArgument: the metadata is invalid.
        """
        options = self.asset_options(asset_key, metadata)
        return self._qualified_name(options, asset_key, asset_key.to_user_string())

    def options_to_open(self, uri: str) -> dict[str, object]:
        """The storage options to open a table at a location with.

        Args:
            uri: location of the table; `catalog://…` for one of the catalog.
        """
        if self.catalog is not None and catalog_name(uri) is not None:
            return {"catalog": self.catalog}
        return self.storage_options.to_options()

    def _options_to_write(self, uri: str, options: AssetOptions) -> dict[str, object]:
        """The same for a table that is created if it does not exist."""
        name = catalog_name(uri)
        if self.catalog is None or name is None:
            return self.options_to_open(uri)
        writable = WritableTables(self.catalog, name, self.root_uri, options.location)
        return {"catalog": writable}

    def _stored_uri(self, options: AssetOptions, asset_key: dg.AssetKey | None, name: str) -> str:
        """Location of the table of an asset, or of an op's output, in production."""
        if self.catalog is None:
            options.check_no_catalog(asset=name)
            return options.table_uri(self.root_uri, asset_key, name)
        return catalog_uri(options.catalog_name(self.catalog.name_parts, asset_key, name))

    def _qualified_name(
        self, options: AssetOptions, asset_key: dg.AssetKey | None, name: str
    ) -> str:
        if self.catalog is None:
            return options.qualified_name(asset_key, name)
        return options.catalog_name(self.catalog.name_parts, asset_key, name)

    def asset_options(self, asset_key: dg.AssetKey, metadata: Mapping[str, object]) -> AssetOptions:
        """How an asset is stored: its metadata over the configuration.

        Args:
            asset_key: of the asset.
            metadata: definition metadata of the asset.

        Raises:
            InvalidArgument: the metadata is invalid.
        """
        name = asset_key.to_user_string()
        return read_asset_options(metadata, self._make_defaults(), asset=name)

    def _make_defaults(self) -> AssetOptions:
        return AssetOptions(
            mode=self.mode,
            schema_mode=self.schema_mode,
            schema=self.schema_,
            table_properties=self.table_properties,
            readers=None if self.readers is None else tuple(self.readers),
            custom_metadata=self.custom_metadata,
            merge_config=self.merge_config,
            show_history=self.show_history,
            update_descriptions=self.update_descriptions,
        )

    def _open_table(self, uri: str, name: str, version: int | None = None) -> DeltaTable:
        try:
            branch = self.find_branch()
            if branch is not None and branch.contains(uri):
                return branch.open(
                    uri, version=version, allow_column_changes=self.enable_column_change
                )
            return DeltaTable(
                uri,
                storage_options=self.options_to_open(uri),
                allow_column_changes=self.enable_column_change,
            )
        except TableNotFound as error:
            keys = "root_uri, schema and table_name" if self.catalog is None else "table or schema"
            raise TableNotFound(
                f"{name} has no Delta table yet: materialize it first, or check that {keys} are "
                "those it was written with; an input whose annotation ends with `| None` is None "
                "then",
                table=error.table or uri,
            ) from error


def _check_place(given: Mapping[str, object]) -> None:
    """Refuse an IO manager that does not know where its tables are."""
    if given.get("catalog") is None and "root_uri" not in given:
        raise InvalidArgument(
            "a DeltaIOManager has the root_uri under which its tables are stored, or the catalog "
            "that has them"
        )
    if given.get("catalog") is not None and type(given.get("branch")) is str and given["branch"]:
        raise InvalidArgument(
            "a DeltaIOManager has a catalog and a branch, whose tables are below a root_uri: give "
            "the code location of a branch another catalog, or another schema of it"
        )


def delta_io_manager(resources: object, key: str, *, asset: str) -> DeltaIOManager:
    """The resource that stores an asset.

    Raises:
        InvalidArgument: it is not a DeltaIOManager.
    """
    manager = getattr(resources, key)
    if not isinstance(manager, DeltaIOManager):
        raise InvalidArgument(
            f"the asset {asset} is stored by the resource {key!r}, a {type(manager).__name__}: "
            "not a DeltaIOManager; jobs and checks also take the location of a table"
        )
    return manager


def _name_value(context: dg.OutputContext | dg.InputContext) -> str:
    return context.asset_key.to_user_string() if context.has_asset_key else context.name


def _find_identity(context: dg.OutputContext | dg.InputContext) -> tuple[dg.AssetKey | None, str]:
    """Asset key and name; one of them names the table."""
    if context.has_asset_key:
        return context.asset_key, _name_value(context)
    output = context.upstream_output if isinstance(context, dg.InputContext) else context
    if output is None or current_execution() is None:
        return None, context.name
    return None, _join_identifier(output).replace(".", "-").replace("[", "-").replace("]", "")


def _join_identifier(output: dg.OutputContext) -> str:
    """The run that wrote an output, its step, name and mapping key, as in Dagster's own IO
    managers: runs of one job share no table, and a re-execution reads the outputs of the steps that
    it skips. Names of Dagster have no hyphens. Empty outside of a run.
    """
    return "" if current_execution() is None else "-".join(output.get_identifier())


def _find_annotation(context: dg.OutputContext | dg.InputContext) -> object:
    """The annotation of the value; `Any` if a unit test builds the context without a type."""
    try:
        return context.dagster_type.typing_type
    except dg.DagsterInvariantViolationError:
        return Any


def _make_partitions_slice(
    context: dg.OutputContext | dg.InputContext, options: AssetOptions, name: str
) -> Slice | None:
    """The rows of the partitions of the run; None if the run has none of the value. Those of an
    op's value are those of the run, if a column is named for them.
    """
    definition: dg.PartitionsDefinition[Any] | None = None
    keys: Sequence[str] = ()
    if context.has_asset_partitions:
        definition = context.asset_partitions_def
        if isinstance(context, dg.InputContext):
            keys = keys_of_input(context)
        else:
            keys = context.asset_partition_keys
    elif not context.has_asset_key and options.partition_expr is not None:
        definition, keys = partitions_of_run()
    if definition is None:
        return None
    select = partition_selector(
        definition, options.partition_expr, asset=name, owned_rows=options.owned_rows
    )
    return partition_slice(select, keys, asset=name)


def _check_overwrite(
    context: dg.OutputContext, options: AssetOptions, name: str, *, is_partitioned: bool
) -> None:
    """Refuse to replace all partitions, or the rows of another mapping key."""
    if not context.has_asset_key:
        has_partitions = options.partition_expr is not None
        is_one_of_many = context.mapping_key is not None or "[" in _join_identifier(context)
        if options.table_name is not None and is_one_of_many:
            raise InvalidArgument(
                f"the output {name} has a value for each mapping key, and one table by table_name, "
                "so that each would replace the rows of the others: set the mode to append, or "
                "omit table_name"
            )
    else:
        try:
            has_partitions = context.asset_partitions_def is not None
        except dg.DagsterInvariantViolationError:
            has_partitions = False
    if has_partitions and not is_partitioned:
        raise InvalidArgument(
            f"{name} is partitioned and the run has no partition, so that the mode overwrite "
            "would replace every partition: launch it for a partition or a range (--partition, "
            "partition_key=…), or all of them as a backfill; an op takes the partition of its "
            "run, whose job needs a partitions_def"
        )
