"""Every factory, asset, resource and component of a code location with a branch acts on the branch,
or is refused by name: production's directory is byte for byte the same afterwards.
"""

# No `from __future__ import annotations`: annotations are looked at as users' modules have them.

import asyncio
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from dagster.components.testing import create_defs_folder_sandbox

import dagster_delta as dd
from dagster_delta.errors import InvalidArgument
from tests.families import family
from tests.orchestration.conftest import library_error
from tests.sample_tables import FEED


@dg.asset(metadata={"table_properties": FEED})
def orders() -> pa.Table:
    return pa.table({"id": [9]})


class Location:
    """A code location whose IO manager has the branch `dev`, over tables of production."""

    def __init__(self, lake: Any, landing: Path) -> None:
        self.lake, self.root, self.landing = lake, lake.root, landing
        self.uri = str(lake.root / "public" / "orders")
        self.branch = dd.Branch(str(lake.root), "dev")

    def run(self, job: dg.JobDefinition, config: Any = None) -> dg.ExecuteInProcessResult:
        """One run of a job of the location."""
        return self.run_in(dg.Definitions(jobs=[job]), job.name, config)

    def run_in(
        self, parts: dg.Definitions, job: str, config: Any = None
    ) -> dg.ExecuteInProcessResult:
        manager = self.lake.manager(branch="dev")
        location = dg.Definitions.merge(
            dg.Definitions(assets=[orders], resources={"io_manager": manager}), parts
        )
        return location.resolve_job_def(job).execute_in_process(
            instance=self.lake.instance, run_config=config, raise_on_error=True
        )

    def materialize(self, *assets: Any) -> None:
        self.lake.materialize(*assets, orders.to_source_asset(), branch="dev")

    def run_op(self, op: dg.OpDefinition, **config: Any) -> None:
        @dg.job(name="of_an_op")
        def job() -> None:
            op()

        given = {"uri": self.uri, **config}
        self.run(job, {"ops": {op.name: {"config": given}}})

    def tick(self, sensor: dg.SensorDefinition, parts: dg.Definitions) -> None:
        """Evaluates a sensor, and runs what it requests."""
        manager = self.lake.manager(branch="dev")
        resources = {"io_manager": manager} if "io_manager" in sensor.required_resource_keys else {}
        with dg.build_sensor_context(
            instance=self.lake.instance, resources=resources, sensor_name=sensor.name
        ) as context:
            result = sensor.evaluate_tick(context)
        for request in result.run_requests or ():
            self.run_in(parts, sensor.job.name, request.run_config)

    def load(self, component: type, **attributes: Any) -> dg.Definitions:
        kind = f"dagster_delta.{component.__name__}"
        with create_defs_folder_sandbox() as sandbox:
            path = sandbox.scaffold_component(
                component,
                scaffold_params={"root": "r", "uri": "u", "source": "s", "upstream": "o"},
                defs_yaml_contents={"type": kind, "attributes": attributes},
            )
            if issubclass(component, dg.StateBackedComponent):
                with sandbox.build_component_tree() as tree:
                    found: Any = tree.load_component(path)
                    asyncio.run(found.refresh_state(sandbox.project_root))
            with sandbox.load_component_and_build_defs(path) as (_, defs):
                return defs


CHANGE = {"statement": "ADD COLUMNS (n INT)", "dry_run": False}
RESTORE = {"version": 0, "dry_run": False}
EVERY_STEP: Any = {
    "vacuum": {"dry_run": False, "retention_hours": 0, "enforce_retention": False},
    "checkpoint": {"enabled": True},
}
CONFIG = dd.DeltaMaintenanceConfig(**EVERY_STEP)
SMALL: Any = {"small_files": 0, "deleted_rows": None, "log_bytes": None, "config": CONFIG}


def run_branch_job(location: Location) -> None:
    for action in ("list", "diff", "rebase"):
        if action == "list" or location.branch.created_ms is not None:
            job = dd.delta_branch_job(assets=[orders])
            location.run(job, {"action": action, "branch": "dev", "dry_run": False})


def run_sensor_of_maintenance(location: Location, **of: Any) -> None:
    sensor = dd.delta_maintenance_sensor(**of, **SMALL)
    location.tick(sensor, dg.Definitions(sensors=[sensor]))


def materialize_computed_assets(location: Location, name: str) -> None:
    (location.landing / "f.csv").write_text("id\n1\n")
    if name == "files":
        location.materialize(dd.delta_files_asset("loaded", str(location.landing / "*.csv")))
    elif name == "sql":
        location.materialize(
            dd.delta_sql_asset("sums", "SELECT sum(id) AS s FROM {o}", {"o": orders})
        )
    else:

        @dd.delta_change_feed_asset(upstream=orders, mode="append")
        def copied(changes: dd.UpstreamChanges) -> pa.Table:
            return changes.to_arrow().select(["id"])

        location.materialize(copied)


def observe(location: Location) -> None:
    asset = dd.observable_delta_asset("seen", location.uri)
    location.run_in(dg.Definitions(assets=[asset]), "__ASSET_JOB")


def check(location: Location) -> None:
    location.materialize(*dd.delta_asset_checks(orders, unique=["id"], health={"num_files": 1}))


def write_through_resource(location: Location) -> None:
    fields = {"root_uri": str(location.root), "schema": "public", "name": "orders", "branch": "dev"}
    dd.DeltaTableResource(**fields).writable_table().append(pa.table({"id": [5]}))


def load_and_run(component: type, job: str | None = None, **attributes: Any) -> Any:
    """What loads a component and runs a job of it; `{…}` are fields of the location."""

    def run(location: Location) -> None:
        def fill(value: Any) -> Any:
            if isinstance(value, Mapping):
                return {key: fill(found) for key, found in value.items()}
            return value.format(location) if isinstance(value, str) else value

        (location.landing / "f.csv").write_text("id\n1\n")
        parts = location.load(component, **fill(attributes))
        if job is not None:
            location.run_in(parts, job)
        for sensor in parts.sensors or ():
            assert isinstance(sensor, dg.SensorDefinition)
            location.tick(sensor, parts)

    return run


def read_in_sensor(make: Any) -> Any:
    """What evaluates a sensor on the location of the table."""

    @dg.job
    def nothing() -> None:
        pass

    def run(location: Location) -> None:
        sensor = make("watch", location.uri, target=nothing, start_from="earliest")
        location.tick(sensor, dg.Definitions(jobs=[nothing]))

    return run


def drop_op_outputs(location: Location, root: str) -> None:
    config = {"ops": {"drop": {"config": {"older_than_hours": 0, "dry_run": False}}}}
    location.run(dd.delta_op_outputs_job(root=root), config)


def tick_for_files(location: Location) -> None:
    (location.landing / "f.csv").write_text("id\n1\n")
    files = dd.delta_files_asset("files", str(location.landing / "*.csv"))
    sensor = dd.delta_files_sensor("arrivals", str(location.landing / "*.csv"), target=[files])
    context = dg.build_sensor_context(instance=location.lake.instance, sensor_name="arrivals")
    sensor(context)


def job_on(
    make: Any, config: Mapping[str, Any], *, by: str, **options: Any
) -> Callable[[Location], None]:
    """What runs a job of a factory on the asset, or on the location of its table."""

    def run(location: Location) -> None:
        of = {"assets": [orders]} if by == "asset" else {"tables": {"orders": location.uri}}
        given = {
            key: value.format(location) if isinstance(value, str) else value
            for key, value in config.items()
        }
        location.run(make(**of, **options), given)

    return run


def job_of_schedule(**of: Any) -> dg.JobDefinition:
    job = dd.delta_maintenance_schedule("nightly", "0 3 * * *", **of).job
    assert isinstance(job, dg.JobDefinition)
    return job


IN_PRODUCTION, IN_BRANCH = "{0.root}/public/copy", "{0.branch.uri}/public/copy"
CSV = "{0.landing}/*.csv"
ACTS, REFUSED, READS = "acts on the branch", "is refused", "writes no table"

CASES: dict[str, tuple[Callable[[Location], None], str]] = {
    "DeltaChangeFeedComponent": (
        load_and_run(
            dd.DeltaChangeFeedComponent,
            "__ASSET_JOB",
            asset={"key": "copied"},
            upstream="orders",
            mode="append",
        ),
        ACTS,
    ),
    "DeltaIngestionComponent": (
        load_and_run(
            dd.DeltaIngestionComponent, "__ASSET_JOB", asset={"key": "loaded"}, source=CSV
        ),
        ACTS,
    ),
    "DeltaIOManager": (lambda location: location.lake.materialize(orders, branch="dev"), ACTS),
    "DeltaLakeComponent": (
        load_and_run(
            dd.DeltaLakeComponent,
            "upkeep",
            root="{0.root}",
            maintenance={"name": "upkeep", "config": EVERY_STEP},
            health={},
        ),
        READS,
    ),
    "DeltaMaintenanceComponent": (
        load_and_run(
            dd.DeltaMaintenanceComponent,
            "upkeep",
            name="upkeep",
            tables={"raw": "{0.uri}"},
            config=EVERY_STEP,
        ),
        READS,
    ),
    "DeltaMaintenanceSensorComponent": (
        load_and_run(
            dd.DeltaMaintenanceSensorComponent,
            root="{0.root}",
            small_files=0,
            config=EVERY_STEP,
        ),
        READS,
    ),
    "DeltaSensorComponent": (
        load_and_run(
            dd.DeltaSensorComponent,
            name="watch",
            tables="{0.uri}",
            asset_key="seen",
            start_from="earliest",
        ),
        READS,
    ),
    "DeltaSqlComponent": (
        load_and_run(
            dd.DeltaSqlComponent,
            "__ASSET_JOB",
            asset={"key": "sums"},
            upstream={"o": "orders"},
            sql="SELECT sum(id) AS s FROM {{o}}",
        ),
        ACTS,
    ),
    "DeltaTableComponent": (
        load_and_run(dd.DeltaTableComponent, "__ASSET_JOB", key="seen", uri="{0.uri}"),
        READS,
    ),
    "DeltaTableResource": (write_through_resource, ACTS),
    "checkpoint_op": (lambda location: location.run_op(dd.checkpoint_op), REFUSED),
    "clean_log_op": (lambda location: location.run_op(dd.clean_log_op, dry_run=False), REFUSED),
    "clone_op": (
        lambda location: location.run_op(
            dd.clone_op, target=IN_PRODUCTION.format(location), dry_run=False
        ),
        REFUSED,
    ),
    "delta_asset_checks": (check, READS),
    "delta_branch_job": (run_branch_job, READS),
    "delta_change_feed_asset": (lambda of: materialize_computed_assets(of, "feed"), ACTS),
    "delta_change_feed_sensor": (read_in_sensor(dd.delta_change_feed_sensor), READS),
    "delta_clone_job": (
        job_on(dd.delta_clone_job, {"target": IN_BRANCH, "dry_run": False}, by="asset"),
        READS,
    ),
    "delta_clone_job into production": (
        job_on(dd.delta_clone_job, {"target": IN_PRODUCTION, "dry_run": False}, by="asset"),
        REFUSED,
    ),
    "delta_clone_job by location": (
        job_on(dd.delta_clone_job, {"target": IN_BRANCH, "dry_run": False}, by="location"),
        READS,
    ),
    "delta_files_asset": (lambda of: materialize_computed_assets(of, "files"), ACTS),
    "delta_files_sensor": (tick_for_files, READS),
    "delta_health_asset": (
        lambda of: of.materialize(dd.delta_health_asset(assets=[orders], root=str(of.root))),
        READS,
    ),
    "delta_maintenance_job": (
        job_on(dd.delta_maintenance_job, EVERY_STEP, by="asset"),
        ACTS,
    ),
    "delta_maintenance_job by location": (
        job_on(dd.delta_maintenance_job, EVERY_STEP, by="location"),
        READS,
    ),
    "delta_maintenance_schedule": (job_on(job_of_schedule, EVERY_STEP, by="asset"), ACTS),
    "delta_maintenance_schedule by location": (
        job_on(job_of_schedule, EVERY_STEP, by="location"),
        READS,
    ),
    "delta_maintenance_sensor": (
        lambda of: run_sensor_of_maintenance(of, assets=[orders]),
        ACTS,
    ),
    "delta_maintenance_sensor by root": (
        lambda of: run_sensor_of_maintenance(of, root=str(of.root)),
        READS,
    ),
    "delta_op_outputs_job": (lambda of: drop_op_outputs(of, str(of.root)), REFUSED),
    "delta_restore_job": (job_on(dd.delta_restore_job, RESTORE, by="asset"), ACTS),
    "delta_restore_job by location": (
        job_on(dd.delta_restore_job, RESTORE, by="location"),
        REFUSED,
    ),
    "delta_schema_change_job": (job_on(dd.delta_schema_change_job, CHANGE, by="asset"), ACTS),
    "delta_schema_change_job by location": (
        job_on(dd.delta_schema_change_job, CHANGE, by="location"),
        REFUSED,
    ),
    "delta_sql_asset": (lambda of: materialize_computed_assets(of, "sql"), ACTS),
    "delta_table_sensor": (read_in_sensor(dd.delta_table_sensor), READS),
    "fsck_op": (lambda location: location.run_op(dd.fsck_op, dry_run=False), REFUSED),
    "history_op": (lambda location: location.run_op(dd.history_op), READS),
    "observable_delta_asset": (observe, READS),
    "optimize_op": (lambda location: location.run_op(dd.optimize_op), REFUSED),
    "reorg_op": (lambda location: location.run_op(dd.reorg_op), REFUSED),
    "restore_op": (lambda location: location.run_op(dd.restore_op, **RESTORE), REFUSED),
    "vacuum_op": (lambda location: location.run_op(dd.vacuum_op, dry_run=False), REFUSED),
}

WITHOUT_TABLES = {
    "delta_metadata": "metadata of an asset",
    "delta_sink": "the code of its user opens the table",
    "delta_table_pool": "a name",
    "CatalogResource": "refused beside a branch, see test_catalogs",
    "GlueCatalogResource": "refused beside a branch, see test_catalogs",
    "UnityCatalogComponent": "assets and health of tables by name, which are only read",
    "UnityCatalogResource": "refused beside a branch, see test_catalogs",
    "SparkSessionResource": "a session",
}


def test_cases_have_every_factory_resource_and_component() -> None:
    ends = ("_op", "Component", "Resource", "IOManager")
    public = {
        name
        for name in dd.__all__
        if name.startswith(("delta_", "observable_")) or name.endswith(ends)
    }
    assert public == {name.partition(" ")[0] for name in CASES} | WITHOUT_TABLES.keys()


def digest(root: Path) -> dict[str, str]:
    """Production's files, by path: those below `_branches` are of branches."""
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*")
        if path.is_file() and "_branches" not in path.parts
    }


@pytest.mark.parametrize("has_table", [False, True], ids=["not begun", "begun"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_location_with_a_branch_leaves_production_as_it_is(
    lake, tmp_path: Path, name: str, has_table: bool
) -> None:
    work, outcome = CASES[name]
    landing = tmp_path / "landing"
    landing.mkdir()
    location = Location(lake, landing)
    for _ in range(3):
        lake.materialize(orders)
    table = dd.DeltaTable(location.uri)
    for value in (1, 2):
        table.append(pa.table({"id": [value]}))
    if has_table:
        own_table = location.branch.begin(location.uri)
        assert own_table is not None
        for value in (3, 4):
            own_table.append(pa.table({"id": [value]}))
    before, own = digest(lake.root), version_in(location)
    try:
        work(location)
    except (InvalidArgument, dg.DagsterError) as error:
        found = library_error(error)
        assert isinstance(found, InvalidArgument), found
        assert "branch 'dev'" in str(found)
        # A table that the branch does not have is not changed.
        assert outcome == REFUSED or not has_table
    else:
        assert outcome != REFUSED
    assert digest(lake.root) == before
    if outcome == ACTS and has_table:
        assert version_in(location) != own


def version_in(location: Location) -> Mapping[str, int]:
    """The versions of the branch's tables, by location."""
    return {
        uri: dd.DeltaTable(location.branch.table_uri(uri)).version()
        for uri in location.branch.tables()
    }


def test_job_by_location_in_the_branch_acts_on_it(lake, tmp_path: Path) -> None:
    location = Location(lake, tmp_path)
    lake.materialize(orders)
    own = location.branch.begin(location.uri)
    assert own is not None
    for value in (1, 2):
        own.append(pa.table({"id": [value]}))
    before, version = digest(lake.root), own.version()
    location.run(dd.delta_maintenance_job(tables={"orders": own.uri}))
    assert own.refresh().version > version
    assert digest(lake.root) == before


RESOURCES = {
    "a resource": "tables = DeltaTableResource(root_uri=ROOT, name='orders', branch=BRANCH)",
    "a function": """
@dg.io_manager
def tables(context):
    return DeltaIOManager(root_uri=ROOT, branch=BRANCH)
""",
    "a generator that needs another resource": """
@dg.io_manager(required_resource_keys={"other"})
def tables(context):
    yield DeltaIOManager(root_uri=ROOT, branch=context.resources.other)
""",
    "a factory": """
class Factory(dg.ConfigurableIOManagerFactory):
    branch: str

    def create_io_manager(self, context):
        return DeltaIOManager(root_uri=ROOT, branch=self.branch)

tables = Factory(branch=BRANCH)
""",
    "a value": """
tables = dg.IOManagerDefinition.hardcoded_io_manager(DeltaIOManager(root_uri=ROOT, branch=BRANCH))
""",
    "a field of a resource": """
class Holder(dg.ConfigurableResource):
    orders: DeltaTableResource

tables = Holder(orders=DeltaTableResource(root_uri=ROOT, name="orders", branch=BRANCH))
""",
    "an IO manager around another": """
class Around(dg.IOManager):
    def __init__(self, inner):
        self.inner = inner

    def handle_output(self, context, obj):
        self.inner.handle_output(context, obj)

    def load_input(self, context):
        return self.inner.load_input(context)

tables = Around(DeltaIOManager(root_uri=ROOT, branch=BRANCH))
""",
    "a resource of an asset": """
@dg.asset(resource_defs={"own": DeltaIOManager(root_uri=ROOT, branch=BRANCH)}, io_manager_key="own")
def orders() -> None: ...

assets, tables = [orders], "none"
""",
    "a resource of another job": """
@dg.op(required_resource_keys={"own"})
def work(context): ...

@dg.job(resource_defs={"own": DeltaIOManager(root_uri=ROOT, branch=BRANCH)})
def another():
    work()

jobs, tables = [another], "none"
""",
}

LOCATION = """
import os

import dagster as dg
from dagster_delta import *

ROOT, BRANCH = os.environ["LAKE"], os.environ["BRANCH"]
assets, jobs = [], []
{resource}
of_orders = {{"orders": f"{{ROOT}}/public/orders"}}
sensor = delta_maintenance_sensor("due", tables=of_orders, small_files=0)

@dg.io_manager(config_schema={{"host": str}})
def of_a_run(context):
    raise ValueError("only with config of a run")

@dg.resource
def spark(context):
    raise ValueError("no job by location needs it")

defs = dg.Definitions(
    assets=assets,
    jobs=[delta_maintenance_job("upkeep", tables=of_orders), *jobs],
    sensors=[sensor],
    resources={{"tables": tables, "other": BRANCH, "of_a_run": of_a_run, "spark": spark}},
)
"""


@pytest.fixture
def production(lake, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root with a table that needs maintenance."""
    uri = str(lake.root / "public" / "orders")
    for value in (1, 2, 3):
        dd.DeltaTable(uri, must_exist=False).append(pa.table({"id": [value]}))
    monkeypatch.setenv("LAKE", str(lake.root))
    return lake.root


def tick_of(
    parts: dg.Definitions, name: str, instance: dg.DagsterInstance
) -> tuple[list[dg.RunRequest], str]:
    """What a tick of a sensor or a schedule of a code location requests, and why nothing."""
    if list(parts.sensors or ()):
        sensor = parts.resolve_sensor_def(name)
        # An evaluation by hand has no resources but those that it is given.
        given = parts.resources or {}
        with dg.build_sensor_context(
            instance=instance,
            definitions=parts,
            sensor_name=name,
            resources={key: given[key] for key in sensor.required_resource_keys},
        ) as context:
            tick: Any = sensor.evaluate_tick(context)
    else:
        repository: Any = parts.get_repository_def()
        with dg.build_schedule_context(instance, repository_def=repository) as of_schedule:
            tick = parts.resolve_schedule_def(name).evaluate_tick(of_schedule)
    return list(tick.run_requests or ()), tick.skip_message or ""


def load_location(resource: str) -> dg.Definitions:
    names: dict[str, Any] = {"__name__": "location"}
    exec(LOCATION.format(resource=resource), names)
    found = names["defs"]
    assert isinstance(found, dg.Definitions)
    return found


KNOWN_IN_A_TICK = {
    "a resource",
    "a field of a resource",
    "a resource of an asset",
    "a resource of another job",
}
"""The others are made by code of the user, which only a run calls."""


@pytest.mark.parametrize("branch", ["dev", ""])
@pytest.mark.parametrize("resource", RESOURCES)
def test_tick_knows_branches_of_resources_without_initializing_any(
    lake, production: Path, monkeypatch: pytest.MonkeyPatch, resource: str, branch: str
) -> None:
    monkeypatch.setenv("BRANCH", branch)
    requests, why = tick_of(load_location(RESOURCES[resource]), "due", lake.instance)
    is_known = bool(branch) and resource in KNOWN_IN_A_TICK
    assert len(requests) == (0 if is_known else 1)
    assert ("the code location has the branch 'dev'" in why) == is_known


def run_upkeep(directory: Path, resource: str, branch: str) -> subprocess.CompletedProcess[str]:
    """A run of the job of the code location, in a process of its own."""
    module = directory / "location.py"
    module.write_text(LOCATION.format(resource=resource))
    # A run in this process has the resources that its job requires, and no code location.
    return subprocess.run(
        [sys.executable, "-m", "dagster", "job", "execute", "-f", str(module), "-j", "upkeep"],
        env={**os.environ, "DAGSTER_HOME": str(directory), "BRANCH": branch},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("resource", "branch"),
    family(
        product(RESOURCES, ("dev", "")),
        ("a resource of an asset", "dev"),
        ("a function", "dev"),
        ("a function", ""),
    ),
)
def test_branch_of_any_resource_is_known_to_a_run(
    tmp_path: Path, production: Path, resource: str, branch: str
) -> None:
    before = digest(production)
    done = run_upkeep(tmp_path, RESOURCES[resource], branch)
    assert done.returncode == 0, done.stderr
    assert (digest(production) == before) == bool(branch)
    assert ("the code location has the branch 'dev'" in done.stderr) == bool(branch)


def test_resource_that_fails_keeps_jobs_by_location_from_writing(
    lake, tmp_path: Path, production: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRANCH", "")
    before = digest(production)
    failing = "@dg.io_manager\ndef tables(context):\n    raise OSError('no network')"
    assert len(tick_of(load_location(failing), "due", lake.instance)[0]) == 1
    done = run_upkeep(tmp_path, failing, "")
    assert done.returncode != 0
    assert "the IO manager 'tables' of the code location cannot be initialized" in done.stderr
    assert digest(production) == before


@pytest.mark.parametrize("branch", ["dev", ""])
@pytest.mark.parametrize("by", ["root", "tables", "schedule"])
def test_nothing_is_requested_against_production(lake, by: str, branch: str) -> None:
    lake.materialize(orders)
    uri = str(lake.root / "public" / "orders")
    for value in (1, 2):
        dd.DeltaTable(uri).append(pa.table({"id": [value]}))
    resources = {"io_manager": lake.manager(branch=branch)}
    if by == "schedule":
        schedule = dd.delta_maintenance_schedule("upkeep", "0 3 * * *", tables={"orders": uri})
        parts = dg.Definitions(schedules=[schedule], resources=resources)
    else:
        of: Any = {"root": str(lake.root)} if by == "root" else {"tables": {"orders": uri}}
        sensor = dd.delta_maintenance_sensor("upkeep", **of, **SMALL)
        parts = dg.Definitions(sensors=[sensor], resources=resources)
    requests, why = tick_of(parts, "upkeep", lake.instance)
    assert len(requests) == (0 if branch else 1)
    assert ("orders not maintained: the code location has the branch 'dev'" in why) == bool(branch)


@pytest.mark.parametrize("has_table", [False, True], ids=["not begun", "begun"])
def test_sensor_of_assets_requests_runs_for_tables_of_the_branch(lake, has_table: bool) -> None:
    lake.materialize(orders)
    uri = str(lake.root / "public" / "orders")
    own = dd.Branch(str(lake.root), "dev").begin(uri) if has_table else None
    for value in (1, 2):
        (own or dd.DeltaTable(uri)).append(pa.table({"id": [value]}))
    sensor = dd.delta_maintenance_sensor("upkeep", assets=[orders], **SMALL)
    resources = {"io_manager": lake.manager(branch="dev")}
    parts = dg.Definitions(assets=[orders], sensors=[sensor], resources=resources)
    requests, why = tick_of(parts, "upkeep", lake.instance)
    assert len(requests) == int(has_table)
    assert ("the branch 'dev' has no table of its own here" in why) == (not has_table)
