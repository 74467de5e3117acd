"""The resources of assets and ops: a Delta table, and a Spark session.

A deployment configures its storage and its Spark here; the layers below receive them.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from dagster import ConfigurableResource, get_dagster_logger
from pydantic import ConfigDict, Field

from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.branches import BranchedTables
from dagster_delta.orchestration.catalogs import CatalogResource, WritableTables
from dagster_delta.orchestration.known_fields import KnownFieldsOnly
from dagster_delta.orchestration.storage_options import (
    AnyStorageOptions,
    LocalStorageOptions,
    refuse_mask,
)
from dagster_delta.storage import catalog_uri, resolve_variable
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.programs import READERS_PROPERTY, known_readers

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from dagster_delta.protocol.schema import StructType
    from dagster_delta.table.branches.branch import Branch

HISTORY_SERVER_URL = "spark.dagster_delta.historyServerUrl"
"""Setting of a session: URL of an application in the History Server, with `APPLICATION_ID`."""
APPLICATION_ID = "{application_id}"
"""Placeholder in `HISTORY_SERVER_URL` for the id of the application."""

_ANY_MASTER = "local[*]"

# A change begins only if both allow it: the resource that opens the table, and the property of the
# table. A change that has begun may be resumed and cancelled in any case.
COLUMN_CHANGE_DESCRIPTION = (
    "Whether column types may be changed online. Tables are unaffected until a change is started "
    "with enable_features: it sets the property dagsterDelta.enableColumnChange, and column "
    "mapping, which some clients cannot read; the plan of the change names them."
)


class SparkSessionResource(KnownFieldsOnly, ConfigurableResource["SparkSession"]):
    """The Spark session of this process, started on first use and then shared.

    A running session is reused, so you can start your own first: it gets the settings of `conf`
    that can change at run time, a warning names those that require another JVM, and it is never
    stopped. If no session runs, and neither `remote` nor a master is given, the Connect server in
    SPARK_REMOTE is used. To build a session in another way, override `create_session`.

    Examples:
        SparkSessionResource()                                      # local, all cores
        SparkSessionResource(master="local[4]", conf={"spark.driver.memory": "8g"})
        SparkSessionResource(master="spark://host:7077")
        SparkSessionResource(remote="sc://host:15002")              # Spark Connect
        SparkSessionResource(shared=True)                           # one server for all processes
    """

    master: str = Field(
        default=_ANY_MASTER, description="Spark master: local[*], spark://…, yarn, k8s://…"
    )
    # Dagster ignores a None from a factory; for the default None of a secret it puts a mask into
    # the Launchpad, and a run would use the mask as the server.
    remote: str | None = Field(
        default_factory=lambda: None,
        repr=False,
        json_schema_extra={"dagster__is_secret": True},
        description="Spark Connect server (sc://…), used instead of a master. It may hold a token.",
    )
    app_name: str = Field(default="dagster", description="Name of the Spark application.")
    conf: dict[str, str] = Field(
        default={},
        repr=False,
        description="Spark settings. Static settings have no effect on a session that is already "
        "running.",
    )
    shared: bool = Field(
        default=False,
        description="Whether the processes of this code location use one Spark Connect server on "
        "this machine. The first step starts it; sessions on it have no sparkContext and no RDDs.",
    )
    idle_minutes: float = Field(
        default=10.0,
        description="How long a shared server stays after the last process that used it has ended.",
    )
    ship_package: bool = Field(
        default=False,
        description="Whether to send this package to the executors, for clusters that do not have "
        "it installed. Its dependencies have to be installed there.",
    )
    history_server_url: str | None = Field(
        default=None,
        description="Where the Spark History Server shows an application, such as "
        "http://host:18080/history/{application_id}: runs link to it. The application has to log "
        "its events (spark.eventLog.enabled).",
    )

    @property
    def session(self) -> SparkSession:
        """The session, started on first use.

        Raises:
            InvalidArgument: a local Spark finds no suitable Java, or Spark Connect lacks packages.
            SparkSessionLost: the JVM of the session is gone.
        """
        try:
            return self.create_session()
        except ImportError as error:
            raise InvalidArgument(
                f"Spark Connect needs packages that are not installed ({error}): "
                "pip install 'dagster-delta-protocol[connect]'"
            ) from error

    @property
    def spark_session(self) -> SparkSession:
        """The same as `session`, by the name that earlier integrations use."""
        return self.session

    def stop_shared_server(self) -> None:
        """End the shared server of these settings that this process has joined, for all that use
        it. Without this call it ends after `idle_minutes`.
        """
        if self.shared:
            from dagster_delta.engines import stop_shared_server

            stop_shared_server(self._shared_settings())

    def create_session(self) -> SparkSession:
        """Start or get the session. Override it to provide your own session."""
        from dagster_delta.engines import (
            is_connect,
            running_session,
            ship_package,
        )

        refuse_mask("remote", self.remote)
        _check_history_server(self.history_server_url)
        if self.remote is None:
            _local_cores(self.master)
        elif self.shared:
            raise InvalidArgument("shared and remote exclude each other: a remote server is shared")
        session = running_session()
        if self.shared and (session is None or is_connect(session)):
            session = self._join_server()
        elif session is not None and (self.remote is None or is_connect(session)):
            # The defaults are for a session started here: on a cluster, shuffles would have too few
            # tasks.
            late = {
                name: value
                for name, value in self.conf.items()
                if not _set_value(session, name, value)
            }
            self._tell_what_takes_no_effect(session, late)
        else:
            session = self._start_session()
        if self.history_server_url is not None:
            _set_value(session, HISTORY_SERVER_URL, self.history_server_url)
        if self.ship_package:
            ship_package(session)
        return session

    def _join_server(self) -> SparkSession:
        """The session of this process on the shared server."""
        if os.name != "posix":
            raise InvalidArgument("shared=True needs file locks that Windows does not have")
        from dagster_delta.engines import join_shared_server

        joined = join_shared_server(self._shared_settings(), idle_minutes=self.idle_minutes)
        what = "Started" if joined.is_new else "Joined"
        ui = f", its UI is {joined.server.ui}" if joined.server.ui else ""
        _log_once(
            ("shared server", str(joined.server.process_id)),
            logging.INFO,
            f"{what} the shared Spark server (a session of Spark Connect, without sparkContext and "
            f"RDDs): its log is {joined.log}{ui}",
        )
        return joined.session

    def _shared_settings(self) -> dict[str, str]:
        from dagster_delta.engines import local_settings

        cores = _local_cores(self.master)
        defaults = {"spark.sql.session.timeZone": "UTC"} if cores is None else local_settings(cores)
        own = {"spark.master": self.master, "spark.app.name": self.app_name}
        return {**defaults, **own, **self.conf}

    def _start_session(self) -> SparkSession:
        from pyspark.sql import SparkSession

        from dagster_delta.engines import local_spark_session

        # The workers' Python needs this package, and `python3` may be another one; a Connect server
        # that is started here inherits it too.
        os.environ.setdefault(
            "PYSPARK_PYTHON", self.conf.get("spark.pyspark.python", sys.executable)
        )
        remote = self.remote
        if remote is None and self.master == _ANY_MASTER:
            # As in Spark itself, which refuses a master together with it.
            remote = os.environ.get("SPARK_REMOTE")
        # The URL of a Connect server may hold a token.
        what = self.master if remote is None else "to a Spark Connect server"
        get_dagster_logger().info(f"Starting the Spark session of this process: {what}")
        cores = None if remote is not None else _local_cores(self.master)
        if cores is not None:
            return local_spark_session(self.app_name, self.conf, cores=cores)
        builder = SparkSession.Builder().appName(self.app_name)
        builder = builder.remote(remote) if remote else builder.master(self.master)
        settings = {"spark.sql.session.timeZone": "UTC", **self.conf}
        for name, value in settings.items():
            builder = builder.config(name, value)
        return builder.getOrCreate()

    def _tell_what_takes_no_effect(self, session: SparkSession, late: Mapping[str, str]) -> None:
        """Warn once per process about settings that the running session can no longer change."""
        from dagster_delta.engines import settings_without_effect

        wanted = dict(late)
        if self.remote is None and self.master != _ANY_MASTER:
            wanted["spark.master"] = self.master
        for name, value in settings_without_effect(session, wanted).items():
            # No values: some are secrets.
            _log_once(
                (name, wanted[name]),
                logging.WARNING,
                f"{name} takes no effect: the Spark session of this process was started "
                f"{'without it' if value is None else 'with another value'}. Give every "
                "SparkSessionResource of a code location the same settings, or stop() the session "
                "first",
            )


def spark_session_of(resource: object) -> SparkSession:
    """The Spark session of a resource of this package or of dagster-pyspark, started if needed.

    Raises:
        InvalidArgument: the resource has none.
    """
    try:
        session: SparkSession = resource.spark_session  # type: ignore[attr-defined]
    except AttributeError as error:
        raise InvalidArgument(
            f"the resource {type(resource).__name__} has no spark_session: pass a "
            "SparkSessionResource, or one of dagster-pyspark"
        ) from error
    return session


_LOGGED: set[tuple[str, str]] = set()


def _log_once(about: tuple[str, str], level: int, text: str) -> None:
    """Log a text, unless this process has logged one about the same."""
    if about not in _LOGGED:
        _LOGGED.add(about)
        get_dagster_logger().log(level, text)


def _check_history_server(template: str | None) -> None:
    """Refuse a template that is not a link, or that shows a password."""
    if template is None:
        return
    found = urlsplit(template)
    if (
        found.scheme not in {"http", "https"}
        or APPLICATION_ID not in template
        or "@" in found.netloc
    ):
        raise InvalidArgument(
            "history_server_url is an http or https URL without a password and with "
            f"{APPLICATION_ID} in it, such as http://host:18080/history/{APPLICATION_ID}"
        )


def _set_value(session: SparkSession, name: str, value: str) -> bool:
    """Set a value in a running session; returns whether the session accepts it."""
    from pyspark.errors import PySparkException

    try:
        session.conf.set(name, value)
    except PySparkException:
        return False
    return True


def _local_cores(master: str) -> int | str | None:
    """The `n` or `*` of `local[n]`, 1 for `local`, or None if the master is not local."""
    if master == "local":
        return 1
    if not (master.startswith("local[") and master.endswith("]")):
        return None
    cores = master.removeprefix("local[").removesuffix("]")
    if cores == "*":
        return cores
    if not cores.isdecimal():
        raise InvalidArgument(
            f"the Spark master {master!r} is not local[*] or local[n] with a number of threads; "
            "local[*,4], which repeats failed tasks, goes into conf, as spark.master"
        )
    return int(cores)


class DeltaTableResource(BranchedTables, ConfigurableResource["DeltaTable"]):
    """One Delta table, for use in any asset or op.

    The table is named by its `uri`, or by `root_uri`, `schema` and `name`, in the layout of
    `DeltaIOManager`, or by its `name` in a `catalog`.

    Examples:
        @dg.asset
        def busiest(flights: DeltaTableResource) -> None:
            flights.table().snapshot().scan(where="month = 7").to_pandas()

        dg.Definitions(resources={"flights": DeltaTableResource(uri="s3://lake/raw/flights")})
        DeltaTableResource(catalog=UnityCatalogResource(…), name="main.raw.flights")
    """

    model_config = ConfigDict(hide_input_in_errors=True)

    uri: str | None = Field(default=None, description="Location of the table.")
    root_uri: str | None = Field(
        default=None, description="Location under which several tables are stored."
    )
    schema_: str | None = Field(
        default=None, alias="schema", description="Directory between the root and the table."
    )
    name: str | None = Field(
        default=None,
        description="Name of the table under the root, or in the catalog: catalog.schema.table.",
    )
    catalog: CatalogResource | None = Field(
        default=None,
        description="The catalog that has the table. `create` creates it managed by the catalog, "
        "or under the root_uri if there is one.",
    )
    version: int | None = Field(
        default=None, description="Version that `table()` opens. Default: the latest."
    )
    storage_options: AnyStorageOptions = Field(
        default=LocalStorageOptions(), description="Storage options."
    )
    enable_column_change: bool = Field(default=False, description=COLUMN_CHANGE_DESCRIPTION)
    readers: list[str] | None = Field(
        default=None,
        description="Other programs that read the table, such as deltalake and DuckDB: a change "
        "after which one of them gives wrong rows without an error is refused. `create` and "
        "`writable_table` store it as the table property dagsterDelta.readers. Default: the "
        "programs that the table names.",
    )

    def __init__(self, **data: Any) -> None:
        if isinstance(readers := data.get("readers"), list):
            known_readers(readers)
        super().__init__(**data)

    @property
    def table_uri(self) -> str:
        """Location of the table.

        Raises:
            InvalidArgument: neither `uri` nor `root_uri` with `name` is set.
        """
        if self.catalog is not None:
            name = ".".join(filter(None, map(resolve_variable, (self.schema_, self.name))))
            if self.uri or not name or resolve_variable(self.branch or ""):
                raise InvalidArgument(
                    "a DeltaTableResource with a catalog has the name of its table in it, as "
                    "catalog.schema.table, and neither uri nor branch"
                )
            return catalog_uri(name)
        if self.uri:
            return resolve_variable(self.uri)
        if self.root_uri and self.name:
            root, *below = map(resolve_variable, (self.root_uri, self.schema_ or "", self.name))
            return "/".join([root.rstrip("/"), *filter(None, below)])
        raise InvalidArgument(
            "a DeltaTableResource needs the location of its table: set uri, or root_uri and name"
        )

    def table(self, version: int | None = None) -> DeltaTable:
        """The table, opened. With a branch, its own table; or production's, which refuses writes,
        if the branch has none: see `writable_table`.

        Args:
            version: version to open, of production's table if that has one; overrides the version
                of the resource.

        Raises:
            TableNotFound: the table does not exist; `create` creates it.
        """
        chosen = self.version if version is None else version
        if (branch := self.find_branch()) is not None:
            return branch.open(
                self.table_uri, version=chosen, allow_column_changes=self.enable_column_change
            )
        uri, options = self._find_place()
        return DeltaTable(
            uri,
            storage_options=options,
            version=chosen,
            allow_column_changes=self.enable_column_change,
        )

    def writable_table(self) -> DeltaTable:
        """The table, opened to be changed: with a branch, its own, which begins as a clone of
        production's if the branch has none yet.

        Raises:
            TableNotFound: the table does not exist; `create` creates it.
        """
        if (branch := self.find_branch()) is not None:
            branch.begin(self.table_uri)
        uri, options = self._find_place()
        table = DeltaTable(
            uri, storage_options=options, allow_column_changes=self.enable_column_change
        )
        named = self._readers_property()
        if any(table.metadata().configuration.get(key) != text for key, text in named.items()):
            table.set_properties(named)
        return table

    def _readers_property(self) -> dict[str, str]:
        """The table property that the option is stored as; none without the option."""
        if self.readers is None:
            return {}
        return {READERS_PROPERTY: ",".join(known_readers(self.readers))}

    def exists(self) -> bool:
        """Whether there is a Delta table at the location, or, with a branch, in the branch."""
        uri, options = self._find_place()
        return DeltaTable.is_delta_table(uri, storage_options=options)

    def create(
        self,
        schema: StructType | pa.Schema,
        *,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        mode: Literal["error", "ignore", "replace"] = "error",
        description: str | None = None,
    ) -> DeltaTable:
        """The table, created.

        Args:
            schema: a `StructType` or a `pyarrow.Schema`.
            partition_by: physical partition columns.
            properties: table properties.
            mode: what to do if a table already exists.
            description: what the table holds.

        Raises:
            TableAlreadyExists: the mode is `error` and the table exists.
        """
        uri, options = self._find_place(is_new=True)
        given = {**self._readers_property(), **(properties or {})}
        if (branch := self.find_branch()) is not None:
            uri = self.table_uri
            if branch.begin(uri) is None:
                given |= branch.new_table_properties(uri)
            uri, options = branch.table_uri(uri), dict(branch.storage_options)
        return DeltaTable.create(
            uri,
            schema,
            partition_by=partition_by,
            properties=given,
            description=description,
            mode=mode,
            storage_options=options,
            allow_column_changes=self.enable_column_change,
        )

    def find_branch(self, name: str | None = None) -> Branch | None:
        """The branch that the table is written to, or another one; None for production.

        Args:
            name: of the other one.

        Raises:
            InvalidArgument: the table is not named by `root_uri` and `name`.
        """
        is_below_root = self.root_uri and self.name and self.catalog is None
        if resolve_variable(name or self.branch or "") and not is_below_root:
            raise InvalidArgument(
                "a DeltaTableResource with a branch names its table by root_uri and name: a branch "
                "has the tables below a root"
            )
        return super().find_branch(name)

    def _find_place(self, *, is_new: bool = False) -> tuple[str, dict[str, object]]:
        """Location and storage options of the table that is read, or that may be created."""
        uri, branch = self.table_uri, self.find_branch()
        if branch is not None and branch.find(uri) is not None:
            return branch.table_uri(uri), dict(branch.storage_options)
        if self.catalog is None:
            return uri, self.storage_options.to_options()
        if is_new:
            name = uri.removeprefix(catalog_uri(""))
            return uri, {"catalog": WritableTables(self.catalog, name, self.root_uri or "")}
        return uri, {"catalog": self.catalog}
