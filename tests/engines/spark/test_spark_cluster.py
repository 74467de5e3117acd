"""What only a cluster shows: workers without this package, and tasks that run on two hosts at once.

The cluster has a master and two workers in the JVM of the driver, and two executors in JVMs of
their own. Spark repeats no slow task on the same host, hence two addresses of this machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = [
    pytest.mark.spark,
    pytest.mark.exhaustive,
    pytest.mark.timeout(3000),
    pytest.mark.skipif(sys.platform != "linux", reason="needs a second loopback address"),
]

# Runs in every Python worker when it starts.
SITE = """
import os, signal, sys, time

here = os.path.dirname(__file__)
sys.path[:] = [each for each in sys.path if not os.path.isdir(f"{each}/dagster_delta")]
replace = os.replace


def executor():
    # The JVM is the parent of the daemon that forked this worker.
    with open(f"/proc/{os.getppid()}/stat") as status:
        return int(status.read().rpartition(")")[2].split()[1])


def slowly_at_first(source, target, **directories):
    replace(source, target, **directories)
    from pyspark import TaskContext

    task = TaskContext.get()
    if not str(target).endswith(".parquet") or task is None:
        return
    for victim in ("worker", "executor"):
        try:
            os.unlink(f"{here}/kill-{victim}")
        except FileNotFoundError:
            continue
        # The file is there, and what reports it is gone.
        os.kill(os.getpid() if victim == "worker" else executor(), signal.SIGKILL)
        time.sleep(60)
    open(f"{here}/marks/{task.stageId()}-{task.partitionId()}-{task.attemptNumber()}", "w").close()
    if task.attemptNumber():
        return
    try:
        open(f"{here}/marks/{task.stageId()}", "x").close()
    except FileExistsError:
        return
    # One task of each stage hangs when its file is there, before it has reported it.
    time.sleep(30)


os.replace = slowly_at_first
"""

DRIVER = """
import json, logging, os, sys
from pathlib import Path
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession
from dagster_delta import Column, DeltaTable, Identity, ship_package
from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration import spark_progress as progress
from dagster_delta.orchestration.spark_progress import watch_spark

progress._SECONDS_TO_ANSWER = 120.0  # the UI answers late on a busy machine

root = sys.argv[1]
quick = "-XX:TieredStopAtLevel=1"
conf = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": quick,
    "spark.executor.extraJavaOptions": quick,
    "spark.executor.memory": "500m",
    "spark.log.level": "OFF",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "200ms",
    "spark.speculation.task.duration.threshold": "200ms",
    "spark.sql.shuffle.partitions": "2",
    "spark.task.maxFailures": "2",
    "spark.ui.port": "0",
    "spark.ui.showConsoleProgress": "false",
}
SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(conf.items()))
java, deploy = SparkContext._jvm.java, SparkContext._jvm.org.apache.spark.deploy
option, plain = SparkContext._jvm.scala.Option, SparkContext._jvm.org.apache.spark.SparkConf(False)
master = deploy.master.Master.startRpcEnvAndEndpoint("127.0.0.1", 0, 0, plain)
urls = SparkContext._gateway.new_array(java.lang.String, 1)
urls[0] = f"spark://127.0.0.1:{master._1().address().port()}"
for number, host in enumerate(["127.0.0.1", "127.0.0.2"]):
    deploy.worker.Worker.startRpcEnvAndEndpoint(
        host, 0, 0, 1, 512, urls, f"{root}/work", option.apply(number), plain, option.empty()
    )
builder = SparkSession.builder.master(urls[0])
for name, value in conf.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
seen = {"rows": {}, "twice": {}}

rows = spark.range(0, 4000, 1, 2).selectExpr("id", "id % 3 AS p")
table = DeltaTable(f"{root}/plain", must_exist=False)
try:
    table.append(rows)
except InvalidArgument as error:
    seen["without"] = error.message
ship_package(spark)
ship_package(spark)


def step(name, table, run):
    before = attempts()
    run()
    table.refresh()
    snapshot = table.snapshot()
    paths = snapshot.files()["path"].to_pylist()
    assert len(set(paths)) == len(paths)
    seen["twice"][name] = [each for each in attempts() - before if each.endswith("-1")]
    ids = snapshot.scan(columns=["id"]).to_arrow()["id"].to_pylist()
    seen["rows"][name] = [len(ids), len(set(ids)), snapshot.num_records]


def attempts():
    # One per attempt of a task to write a data file.
    return {each.name for each in Path(root, "site", "marks").iterdir()}


def failing_at_the_end(batches):
    from pyspark import TaskContext

    yield from batches
    # By now the first rows are in files.
    if TaskContext.get().attemptNumber() == 0:
        raise RuntimeError("the first attempt fails")


step("plain", table, lambda: table.append(rows))
parts = DeltaTable(f"{root}/parts", must_exist=False)
step("partitioned", parts, lambda: parts.append(rows, partition_by=["p"]))
step("delete", table, lambda: table.delete("id % 4 = 0", engine="spark"))
table.append(spark.range(4000, 5000, 1, 2).selectExpr("id", "id % 3 AS p"))
step("compacted", table, lambda: table.optimize(engine="spark"))

columns = [Column("id", "BIGINT"), Column("u", "STRING"), Column("v", "STRING")]
numbered = DeltaTable.create(
    f"{root}/numbered", [*columns, Column("number", "BIGINT", identity=Identity())]
)


def drawn(ids):
    # Each evaluation has other rows and other values.
    return ids.selectExpr("id", "uuid() AS u").selectExpr("id", "u", "u AS v")


step("identity", numbered, lambda: numbered.append(drawn(spark.range(0, 4000, 1, 2))))
merge = numbered.merge(drawn(spark.range(2000, 6000, 1, 2).where("rand() < 0.5")), "t.id = s.id")
merge = merge.when_matched_update_all().when_not_matched_insert_all()
step("drawn", numbered, merge.execute)
found = numbered.snapshot().scan().to_arrow().to_pylist()
seen["numbers"] = [len({row["number"] for row in found} - {None}), len(found)]
seen["torn"] = sum(row["u"] != row["v"] for row in found)

def killing(victim, run):
    mark = Path(root, "site", f"kill-{victim}")
    mark.touch()
    run()
    seen["killed"] = seen.get("killed", 0) + (not mark.exists())


for victim in ("worker", "executor"):
    lost = DeltaTable(f"{root}/{victim}", must_exist=False)
    step(f"{victim} append", lost, lambda: killing(victim, lambda: lost.append(rows)))
    source = spark.range(2000, 6000, 1, 2).selectExpr("id", "id % 3 AS p")
    merge = lost.merge(source, "t.id = s.id").when_matched_update_all()
    merge = merge.when_not_matched_insert_all()
    if victim == "worker":
        step(f"{victim} merge", lost, lambda: killing(victim, merge.execute))
    else:
        # An executor may take the checkpoint of the source with it, and then the merge fails.
        merge.execute()
    step(
        f"{victim} compact",
        lost,
        lambda: killing(victim, lambda: lost.optimize(engine="spark")),
    )

failed = DeltaTable(f"{root}/failed", must_exist=False)
many = spark.range(0, 200_000, 1, 2).mapInArrow(failing_at_the_end, "id bigint")
step("failed", failed, lambda: failed.append(many))

with watch_spark(rows, logging.getLogger()) as work:
    table.append(table.snapshot().scan().to_spark(spark).repartition(2))
seen["metadata"] = {name: getattr(each, "value", each) for name, each in work.items()}
print("\\n" + json.dumps(seen), flush=True)
# Spark takes its time to end a cluster.
os._exit(0)
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a driver tells that works with such a cluster."""
    root = tmp_path_factory.mktemp("cluster")
    (root / "site" / "marks").mkdir(parents=True)
    (root / "site" / "sitecustomize.py").write_text(SITE)
    python = root / "python"
    # -P: the working directory may hold the package.
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH="{root}/site:$PYTHONPATH" exec "{sys.executable}" -P "$@"\n'
    )
    python.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(root)],
        env={**os.environ, "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=2900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_workers_without_the_package_are_told_from_other_failures(seen: Any) -> None:
    assert seen["without"].startswith("the Spark workers cannot import dagster_delta: ")
    assert "ship_package" in seen["without"]


def test_workers_without_the_package_write_once_it_was_sent(seen: Any) -> None:
    assert seen["rows"]["plain"] == [4000, 4000, 4000]


@pytest.mark.parametrize(
    ("step", "rows"),
    [("plain", 4000), ("partitioned", 4000), ("delete", 3000), ("compacted", 4000)],
)
def test_a_task_that_ran_twice_at_once_is_in_the_commit_once(
    step: str, rows: int, seen: Any
) -> None:
    assert seen["rows"][step] == [rows, rows, rows]
    assert seen["twice"][step]


def test_rows_that_are_drawn_and_numbered_are_so_once_though_tasks_ran_twice(seen: Any) -> None:
    assert seen["rows"]["identity"] == [4000, 4000, 4000]
    rows, ids, records = seen["rows"]["drawn"]
    assert rows == ids == records
    assert 4000 < rows < 6000
    assert seen["twice"]["identity"]
    assert seen["twice"]["drawn"]
    assert seen["numbers"] == [rows, rows]
    assert not seen["torn"]


@pytest.mark.parametrize(
    ("victim", "step", "rows"),
    [
        ("worker", "append", 4000),
        ("worker", "merge", 6000),
        ("worker", "compact", 6000),
        ("executor", "append", 4000),
        ("executor", "compact", 6000),
    ],
)
def test_what_is_killed_beside_its_finished_file_costs_and_doubles_no_row(
    victim: str, step: str, rows: int, seen: Any
) -> None:
    assert seen["killed"] == 5
    assert seen["rows"][f"{victim} {step}"] == [rows, rows, rows]


def test_rows_of_a_failed_attempt_are_not_in_the_commit(seen: Any) -> None:
    assert seen["rows"]["failed"] == [200_000, 200_000, 200_000]
    assert seen["twice"]["failed"]


def test_the_bytes_of_stages_are_told_where_there_is_a_ui(seen: Any) -> None:
    metadata = seen["metadata"]
    assert metadata["spark/input_bytes"] > 0
    assert metadata["spark/shuffle_write_bytes"] > 0
    assert metadata["spark/shuffle_read_bytes"] > 0
    # The UI ends with the process.
    assert "spark/ui" not in metadata
    assert "Range" in metadata["spark/plan"]
