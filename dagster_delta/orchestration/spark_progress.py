"""What Spark is doing for a step, in the log of its run while it lasts, and in its metadata after.

Only public interfaces of a classic session are asked; Spark Connect has none for it.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from dagster import MetadataValue

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = ["SparkWork", "watch_spark"]

_JOB_GROUP = "spark.jobGroup.id"
_SECONDS_BETWEEN_REPORTS = 10.0


class _Log(Protocol):
    def info(self, msg: object) -> None:
        """Put a line into the log of the run."""


@dataclass(slots=True)
class SparkWork:
    """The Spark jobs of one step; none where no classic session works for it."""

    metadata: dict[str, Any] = field(default_factory=dict)
    """For the metadata of the output, once the work is done."""


@contextmanager
def watch_spark(
    data: object, log: _Log, *, every_seconds: float = _SECONDS_BETWEEN_REPORTS
) -> Iterator[SparkWork]:
    """Report on the Spark jobs that the block starts in this thread.

    Args:
        data: what the block works on; nothing happens unless it is a DataFrame of a classic
            session.
        log: of the run.
        every_seconds: how long to wait between two lines in the log; work that takes less has none.
    """
    work = SparkWork()
    context = _classic_context(data)
    if context is None:
        yield work
        return
    group = context.getLocalProperty(_JOB_GROUP)
    own_group = None if group else f"dagster-{uuid.uuid4()}"
    if own_group:
        context.setLocalProperty(_JOB_GROUP, own_group)
    watch = _Watch(context, group or str(own_group))
    stopped = threading.Event()
    reporter = threading.Thread(
        target=watch.report, args=(log, every_seconds, stopped), name="spark-progress", daemon=True
    )
    start = time.monotonic()
    reporter.start()
    try:
        yield work
    finally:
        stopped.set()
        reporter.join()
        if own_group:
            context.setLocalProperty(_JOB_GROUP, None)  # type: ignore[arg-type]
    work.metadata.update(watch.metadata(time.monotonic() - start))


def _classic_context(data: object) -> SparkContext | None:
    if not type(data).__module__.startswith("pyspark.sql"):
        return None
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from dagster_delta.engines.spark.session import is_connect

    session = getattr(data, "sparkSession", None)
    if session is None or is_connect(data):
        return None
    try:
        context: SparkContext = session.sparkContext
        context.getLocalProperty(_JOB_GROUP)
    except (Py4JError, PySparkException):
        # Some platforms keep the context from notebooks that share a cluster.
        return None
    return context


class _Watch:
    """The jobs that are started in a job group from now on."""

    def __init__(self, context: SparkContext, group: str) -> None:
        self._context = context
        self._group = group
        self._before = frozenset(self._ids_of_group())

    def report(self, log: _Log, every_seconds: float, stopped: threading.Event) -> None:
        """Log how far the jobs are, again and again, where it has changed."""
        last = None
        while not stopped.wait(every_seconds):
            line = self._line()
            if line is not None and line != last:
                log.info(line)
                last = line

    def _line(self) -> str | None:
        tracker = self._context.statusTracker()
        active = set(tracker.getActiveStageIds())
        stages = [
            f"stage {each.stageId} ({each.name.partition(' at ')[0]}): {each.numCompletedTasks} of "
            f"{each.numTasks} tasks done, {each.numActiveTasks} running"
            for each in self._stages()
            if each.stageId in active
        ]
        return f"Spark: {'; '.join(stages)}" if stages else None

    def _stages(self) -> list[Any]:
        tracker = self._context.statusTracker()
        jobs = [tracker.getJobInfo(each) for each in self._job_ids()]
        ids = sorted({stage for job in jobs if job is not None for stage in job.stageIds})
        found = [tracker.getStageInfo(each) for each in ids]
        return [each for each in found if each is not None]

    def _job_ids(self) -> list[int]:
        return [each for each in self._ids_of_group() if each not in self._before]

    def _ids_of_group(self) -> list[int]:
        return list(self._context.statusTracker().getJobIdsForGroup(self._group))

    def metadata(self, seconds: float) -> dict[str, Any]:
        """What the jobs came to, and where Spark shows more; nothing where Spark is gone."""
        from py4j.protocol import Py4JError

        try:
            return self._metadata(seconds)
        except Py4JError:
            # The rows are committed: a session that was stopped meanwhile is no reason to fail.
            return {}

    def _metadata(self, seconds: float) -> dict[str, Any]:
        stages = self._stages()
        found: dict[str, Any] = {
            "spark/application_id": self._context.applicationId,
            "spark/jobs": len(self._job_ids()),
            "spark/tasks": sum(each.numCompletedTasks for each in stages),
            "spark/failed_tasks": sum(each.numFailedTasks for each in stages),
            "spark/seconds": round(seconds, 3),
        }
        if self._context.uiWebUrl is not None:
            found["spark/ui"] = MetadataValue.url(self._context.uiWebUrl)
        return found
