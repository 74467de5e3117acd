"""What the tests of real materializations share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from alembic.script import ScriptDirectory

from dagster_delta.errors import DeltaError
from dagster_delta.orchestration.io.io_manager import DeltaIOManager
from dagster_delta.table.delta_table import DeltaTable
from tests.table_rows import stored_rows

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


class Lake:
    """A directory of tables, an instance that remembers its runs, and an IO manager over both."""

    def __init__(self, root: Path, instance: dg.DagsterInstance) -> None:
        self.root = root
        self.instance = instance
        self.options: dict[str, Any] = {}

    def materialize(
        self,
        *assets: Any,
        partition: str | None = None,
        range_of: tuple[str, str] | None = None,
        raise_on_error: bool = True,
        resources: dict[str, Any] | None = None,
        tags: dict[str, str] | None = None,
        **options: Any,
    ) -> dg.ExecuteInProcessResult:
        """One run of these assets, with these options of the IO manager."""
        tags = dict(tags or {})
        if range_of is not None:
            tags["dagster/asset_partition_range_start"] = range_of[0]
            tags["dagster/asset_partition_range_end"] = range_of[1]
        return dg.materialize(
            list(assets),
            instance=self.instance,
            resources={"io_manager": self.manager(**options), **(resources or {})},
            partition_key=partition,
            tags=tags,
            run_config=QUIET,
            raise_on_error=raise_on_error,
        )

    def manager(self, **options: Any) -> DeltaIOManager:
        return DeltaIOManager(root_uri=str(self.root), **{**self.options, **options})

    def fail(self, *assets: Any, **arguments: Any) -> BaseException:
        """The error that makes a run of these assets fail."""
        with pytest.raises(Exception) as caught:
            self.materialize(*assets, **arguments)
        return library_error(caught.value)

    def table(self, name: str = "events", schema: str = "public") -> DeltaTable:
        return DeltaTable(str(self.root / schema / name))

    def rows(self, name: str = "events", schema: str = "public") -> list[dict[str, Any]]:
        """All rows of a table, in an order that does not depend on its files."""
        return stored_rows(self.table(name, schema))

    def column(self, column: str, name: str = "events") -> list[Any]:
        """The sorted values of one column."""
        return sorted(row[column] for row in self.rows(name))

    def metadata(self, result: dg.ExecuteInProcessResult, name: str = "events") -> dict[str, Any]:
        """Plain metadata of the one materialization of an asset in a run."""
        (one,) = result.asset_materializations_for_node(name)
        return plain(one.metadata)

    def metadata_of_last(self, name: str = "events") -> dict[str, Any]:
        """Plain metadata of the latest materialization of an asset."""
        event = self.instance.get_latest_materialization_event(dg.AssetKey(name))
        assert event is not None
        assert event.asset_materialization is not None
        return plain(event.asset_materialization.metadata)


def plain(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value.value for key, value in metadata.items()}


def library_error(error: BaseException) -> BaseException:
    """Our error behind Dagster's, or the first cause where it is not ours."""
    while not isinstance(error, DeltaError) and error.__cause__ is not None:
        error = error.__cause__
    return error


@pytest.fixture(scope="session", autouse=True)
def migrations_are_read_once() -> Iterator[None]:
    """Each new instance says that its databases have the newest of Dagster's 90 migrations, for
    which Alembic loads all of them: most of what an instance costs.
    """
    read, known = ScriptDirectory.from_config, {}

    def from_config(config: Any) -> ScriptDirectory:
        place = config.get_main_option("script_location")
        if place not in known:
            known[place] = read(config)
        return known[place]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptDirectory, "from_config", from_config)
        yield


@pytest.fixture(scope="session", autouse=True)
def schemas_of_resources_are_inferred_once() -> Iterator[None]:
    """Dagster infers the config schema of a resource from its class whenever an object of it is
    made, which a run does three times: for an IO manager that is a third of the run.
    """
    module = sys.modules[dg.ConfigurableResource.__init__.__module__]
    name = "infer_schema_from_config_class"
    infer, known = getattr(module, name), {}

    def inferred(model: type, *, fields_to_omit: Collection[str], **options: Any) -> Any:
        if options:
            return infer(model, fields_to_omit=fields_to_omit, **options)
        # Nothing changes a schema: what a resource is configured with goes into a copy.
        key = (model, frozenset(fields_to_omit))
        if key not in known:
            known[key] = infer(model, fields_to_omit=fields_to_omit)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, inferred)
        yield


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


@pytest.fixture
def lake(tmp_path: Path):
    with dg.DagsterInstance.ephemeral() as instance:
        yield Lake(tmp_path / "lake", instance)


@pytest.fixture
def stored_lake(tmp_path: Path):
    """As `lake`, on an instance that keeps its runs in files."""
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        yield Lake(tmp_path / "lake", instance)


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    (tmp_path / "landing").mkdir()
    return tmp_path / "landing"


@pytest.fixture
def put(landing: Path) -> Callable[..., Path]:
    """Puts a file with a modification time into the landing zone."""

    def put(name: str, content: str | bytes, at: int = 1000) -> Path:
        path = landing / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        os.utime(path, (at, at))
        return path

    return put


@pytest.fixture
def events() -> Callable[..., dg.AssetsDefinition]:
    """Makes the asset `events`, which returns whatever it is told to."""

    def make(
        produce: Callable[[Any], Any] | Any,
        *,
        name: str = "events",
        **options: Any,
    ) -> dg.AssetsDefinition:
        @dg.asset(name=name, **options)
        def asset(context):
            return produce(context) if callable(produce) else produce

        return asset

    return make


def table_of(rows: Sequence[dict[str, Any]], schema: pa.Schema | None = None) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=schema)
