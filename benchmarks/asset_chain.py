"""A run of six assets on Spark under Dagster's default executor, which starts a process for each step:
with one shared server, with a session for each step, and with delta-spark. Beside them the same steps
in one process, which start no processes and no second session.

    python -m benchmarks.asset_chain --scale 1 --rounds 3

"first run" starts the server; before "later run" it runs already.
"""

# No `from __future__ import annotations`: Dagster compares the annotation of `context` itself.

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
from pyspark.sql import DataFrame, SparkSession

from benchmarks.harness import Case, Peer, main
from dagster_delta import DeltaIOManager, DeltaTable, SparkSessionResource
from tests.reference.jars import delta_spark_settings, resolve_jars

ROOT = os.environ.get("CHAIN_ROOT", "")
ROWS = int(os.environ.get("CHAIN_ROWS", "1"))
ASSETS = 6

SHARED = SparkSessionResource(shared=True, idle_minutes=0.5)


class DeltaSparkManager(dg.ConfigurableIOManager):
    """What a user writes for delta-spark: a session for each process."""

    def session(self) -> SparkSession:
        builder = SparkSession.Builder().master("local[*]")
        for name, value in delta_spark_settings(resolve_jars()[0]).items():
            builder = builder.config(name, value)
        return builder.config("spark.ui.enabled", "false").getOrCreate()

    def handle_output(self, context: dg.OutputContext, obj: DataFrame) -> None:
        path = f"{ROOT}/{context.asset_key.path[-1]}"
        obj.write.format("delta").mode("overwrite").save(path)

    def load_input(self, context: dg.InputContext) -> DataFrame:
        path = f"{ROOT}/{context.asset_key.path[-1]}"
        return self.session().read.format("delta").load(path)


def _asset(number: int) -> dg.AssetsDefinition:
    if number == 0:

        @dg.asset(name="a0", required_resource_keys={"spark"})
        def first(context: dg.AssetExecutionContext) -> Any:
            return context.resources.spark.session.range(ROWS).selectExpr("id", "hash(id) AS h")

        return first

    @dg.asset(name=f"a{number}", ins={"rows": dg.AssetIn(f"a{number - 1}")})
    def next_one(rows: DataFrame) -> Any:
        return rows.where(f"pmod(h, 100) >= {number}")

    return next_one


class DeltaSparkSession(dg.ConfigurableResource[Any]):
    """The session of `DeltaSparkManager`."""

    @property
    def session(self) -> SparkSession:
        return DeltaSparkManager().session()


def _job(
    spark: Any, manager: Any, executor: dg.ExecutorDefinition = dg.multiprocess_executor
) -> dg.JobDefinition:
    return dg.Definitions(
        [_asset(number) for number in range(ASSETS)],
        jobs=[dg.define_asset_job("chain", executor_def=executor)],
        resources={"io_manager": manager, "spark": spark},
    ).resolve_job_def("chain")


def shared() -> dg.JobDefinition:
    """Ours, one server for all steps."""
    return _job(SHARED, DeltaIOManager(root_uri=ROOT, spark=SHARED))


def own() -> dg.JobDefinition:
    """Ours, a session for each step."""
    spark = SparkSessionResource()
    return _job(spark, DeltaIOManager(root_uri=ROOT, spark=spark))


def one_process() -> dg.JobDefinition:
    """Ours, all steps in the process of the run."""
    spark = SparkSessionResource()
    manager = DeltaIOManager(root_uri=ROOT, spark=spark)
    return _job(spark, manager, dg.in_process_executor)


def delta_spark() -> dg.JobDefinition:
    """delta-spark, a session for each step."""
    return _job(DeltaSparkSession(), DeltaSparkManager())


def _nothing(directory: Path, size: int) -> None:
    """The first asset makes the rows."""


def _chain(name: str, *, later: bool = False) -> Peer:
    def start(directory: Path, size: int) -> Callable[[], object]:
        home = Path(tempfile.mkdtemp(dir=directory))
        (home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
        root = tempfile.mkdtemp(dir=directory)
        # For the processes of the steps; the server is found under TMPDIR.
        os.environ.update(CHAIN_ROOT=root, CHAIN_ROWS=str(size), DAGSTER_HOME=str(home))
        os.environ["TMPDIR"] = tempfile.tempdir = str(home)

        # The processes of the steps import the job by its module, which is not `__main__`.
        from benchmarks import asset_chain

        job = dg.reconstructable(getattr(asset_chain, name))

        def run() -> str:
            quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
            with (
                dg.DagsterInstance.get() as instance,
                dg.execute_job(job, instance, run_config=quiet) as done,
            ):
                assert done.success
            (log,) = Path(root).rglob(f"a{ASSETS - 1}/_delta_log")
            return f"{DeltaTable(str(log.parent)).snapshot().num_records} rows"

        if later:
            run()
        return run

    return start


_PEERS = {
    "ours, shared": _chain("shared"),
    "ours, one each": _chain("own"),
    "ours, one process": _chain("one_process"),
    "delta-spark": _chain("delta_spark"),
}

CASES = {
    "first": Case("first run of six assets, {size} rows", 100_000, _nothing, _PEERS),
    "later": Case(
        "later run of six assets, {size} rows",
        100_000,
        _nothing,
        {**_PEERS, "ours, shared": _chain("shared", later=True)},
    ),
}

if __spec__ is not None:
    main(__name__, __spec__.name, CASES)
