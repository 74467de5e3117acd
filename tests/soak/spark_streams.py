"""Part `streams`: streaming queries of Spark that are broken off at each step and started again.

One query copies the rows of a table, another its change data feed, each into a table of its own.
They are broken off before and after the commit of the sink, before Spark has noted a batch, and by
a Python worker of theirs that is killed: the source, a task, or neither if it came too late. In the
end each row is there once.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_delta import DeltaTable, delta_sink, register_delta_log
from tests.golden.answers import rows_of
from tests.soak.part import Round
from tests.soak.spark_histories import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dagster_delta.streaming.sink import DeltaSink

STEPS = 12
FAULTS = ("none", "before the commit", "after the commit", "batch not noted", "killed worker")
CHANGE_COLUMNS = {"_change_type": "change", "_commit_version": "version"}


class _Broken(Exception):
    """Ends a query."""


@dataclass
class _Query:
    """A streaming query, as it is started again and again."""

    source: str
    target: str
    checkpoint: Path
    options: dict[str, str]

    def run(self, session: SparkSession, fault: str, delay_s: float) -> bool:
        """Process all that is there; whether the query got to its end."""
        sink: DeltaSink = delta_sink(self.target)

        def fragile(frame: DataFrame, batch_id: int) -> None:
            if fault == "before the commit":
                raise _Broken
            renamed = {old: new for old, new in CHANGE_COLUMNS.items() if old in frame.columns}
            sink(frame.withColumnsRenamed(renamed).drop("_commit_timestamp"), batch_id)
            if fault == "after the commit":
                raise _Broken

        query = (
            session.readStream.format("delta_log")
            .options(**self.options)
            .load(self.source)
            .writeStream.option("checkpointLocation", str(self.checkpoint))
            .foreachBatch(fragile)
            .trigger(availableNow=True)
            .start()
        )
        killer = threading.Timer(delay_s, _kill_a_worker, [session, delay_s])
        if fault == "killed worker":
            killer.start()
        try:
            query.awaitTermination()
        except Exception:
            if fault == "none":
                raise
            return False
        finally:
            killer.cancel()
        if fault == "batch not noted":
            # As if the process had ended between the commit of the sink and Spark's own.
            noted = sorted((self.checkpoint / "commits").glob("[0-9]*"), key=lambda p: int(p.name))
            for path in noted[-1:]:
                path.unlink()
                path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        return True


def _kill_a_worker(session: SparkSession, choice: float) -> None:
    """Kill one of the Python processes below the JVM of the session."""
    gateway: Any = session.sparkContext._gateway
    family, found = {gateway.proc.pid}, []
    for path in sorted(Path("/proc").glob("[0-9]*/stat"), key=lambda path: int(path.parent.name)):
        with suppress(OSError):
            text = path.read_text()
            if int(text.rpartition(")")[2].split()[1]) in family:
                family.add(int(path.parent.name))
                found += [int(path.parent.name)] if "python" in text.split(")")[0] else []
    if found:
        with suppress(ProcessLookupError):
            os.kill(found[int(choice * 1000) % len(found)], signal.SIGKILL)


def play_stream_round(round_: Round) -> None:
    """Change a table step by step, and run both queries after each."""
    chance, session = round_.random, spark_session()
    register_delta_log(session)
    source = str(round_.scratch / "source")
    table = DeltaTable(source, must_exist=False)
    properties = {
        "delta.enableChangeDataFeed": "true",
        "delta.enableDeletionVectors": chance.choice(["true", "false"]),
        "delta.checkpointInterval": chance.choice(["2", "10"]),
    }
    limit = {"maxFilesPerTrigger": chance.choice(["1", "2", "100"])}
    rows, feed = (
        _Query(source, str(round_.scratch / name), round_.scratch / f"{name}-checkpoint", options)
        for name, options in (
            ("rows", {**limit, "skipChangeCommits": "true"}),
            ("feed", {**limit, "readChangeFeed": "true", "startingVersion": "0"}),
        )
    )
    added: list[int] = []
    begun = False
    for step in range(3 if round_.short else STEPS):
        if round_.is_over:
            return
        ids = list(range(step * 100, step * 100 + chance.randint(1, 9)))
        for id_ in ids:
            table.append(pa.table({"id": [id_], "v": [step]}), properties=properties)
        added += ids
        if begun:
            # What a query starts with is not what was ever added.
            _change(table, chance.choice(["delete", "update", "merge", "optimize", "checkpoint"]))
        for query in (rows, feed):
            for _ in range(chance.randint(0, 2)):
                fault = chance.choice(FAULTS)
                ended = query.run(session, fault, chance.uniform(0.0, 4.0))
                round_.fault(f"{fault}{'' if ended else ', broken off'}")
            query.run(session, "none", 0)
            round_.result.operations += 1
        begun = True
        found = DeltaTable(rows.target).snapshot().scan(columns=["id"]).to_arrow()
        if Counter(found["id"].to_pylist()) != Counter(added):
            detail = f"{found['id'].to_pylist()}, not {added}"
            round_.fail("a stream has other rows", detail, save=round_.scratch)
            return
        changes = table.changes(0).to_arrow().drop_columns(["_commit_timestamp"])
        copied = DeltaTable(feed.target).snapshot().scan().to_arrow()
        expected = changes.rename_columns([CHANGE_COLUMNS.get(n, n) for n in changes.column_names])
        if rows_of(copied) != rows_of(expected):
            detail = f"{rows_of(copied)}, not {rows_of(expected)}"
            round_.fail("a stream has another feed", detail, save=round_.scratch)
            return


def _change(table: DeltaTable, kind: str) -> None:
    match kind:
        case "delete":
            table.delete("id % 7 = 3")
        case "update":
            table.update({"v": "v + 1"}, "id % 3 = 0")
        case "merge":
            source = pa.table(
                {"id": table.snapshot().scan(["id"]).to_arrow()["id"][:3], "v": [7] * 3}
            )
            table.merge(source, "t.id = s.id").when_matched_update_all().execute()
        case "optimize":
            table.optimize()
        case "checkpoint":
            table.checkpoint()
