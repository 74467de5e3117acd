"""The stages of Spark in the log of a step, and their totals in its metadata. PySpark is imported
only if the step uses it.

It uses only public interfaces: the status tracker and the UI of a classic session, the progress
handlers of a Connect session. Facts that they do not provide are omitted.
"""

from __future__ import annotations

import re
import threading
import time
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from logging import Logger
from typing import TYPE_CHECKING, Any

import msgspec
from dagster import MetadataValue

from dagster_delta.engines import counting_written_bytes, is_spark_frame
from dagster_delta.orchestration.metadata_keys import RawMetadata
from dagster_delta.orchestration.resources import APPLICATION_ID, HISTORY_SERVER_URL

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

MAX_PLAN_CHARACTERS = 20_000
"""Plans of wide tables can be very long, and metadata is stored for every run."""

_HIDDEN = "***"
_NAME = (
    r"[\w.#-]*(?:passw(?:or)?d|pwd|secret|token|api[_-]?key|access[_-]?key|account[_-]?key|"
    r"credential|signature|\bsig)[\w.#-]*"
)
_NAMED = re.compile(rf"(?i)({_NAME}\s*(?:=|:\s|%3[ad])\s*)(\"[^\"]*\"|'[^']*'|[^\s,;&)\]}}>]+)")
_PUSHED = re.compile(rf"(?i)(\(`?{_NAME}`?,)[^)]*\)")
_IN_URL = re.compile(r"(?<=://)[^\s/@:]+:[^\s/@]+@")
_KEY = re.compile(r"\b(?:(?:AKIA|ASIA)[0-9A-Z]{16}|eyJ[\w-]+\.[\w-]+\.[\w-]*)")

_JOB_GROUP = "spark.jobGroup.id"
_SECONDS_BETWEEN_REPORTS = 10.0
_SECONDS_TO_ANSWER = 4.0
_MAX_ANSWER_BYTES = 64 << 20


@contextmanager
def watch_spark(
    data: Any,  # noqa: ANN401  the value that an asset returned, among others
    log: Logger,
    *,
    every_seconds: float = _SECONDS_BETWEEN_REPORTS,
) -> Iterator[RawMetadata]:
    """Report on the Spark jobs that the block starts in this thread, and yield their metadata,
    which are complete after the block.

    `data` is the DataFrame or Spark session that the block uses; for other values, nothing is
    reported. Work that is shorter than `every_seconds` has no line in the log. If the block fails
    because the JVM of the session is gone, it raises SparkSessionLost.
    """
    metadata: RawMetadata = {}
    session = getattr(data, "sparkSession", data)
    if not is_spark_frame(data) or type(session).__name__ != "SparkSession":
        yield metadata
        return
    from dagster_delta.engines import naming_lost_session

    with naming_lost_session():
        with (
            counting_written_bytes() as written,
            _report_progress(session, metadata, log, every_seconds),
        ):
            yield metadata
        metadata |= _history_link(session)
        if written.size_bytes:
            metadata["spark/output_bytes"] = written.size_bytes
        plan = None if data is session else physical_plan(data)
        if plan is not None:
            # The plan may contain backticks, but no line of backticks only.
            metadata["spark/plan"] = MetadataValue.md(f"```text\n{plan}\n```")


@contextmanager
def _report_progress(
    session: SparkSession, metadata: RawMetadata, log: Logger, every_seconds: float
) -> Iterator[None]:
    watch = _watch_of(session)
    stopped = threading.Event()

    def report() -> None:
        last = None
        while not stopped.wait(every_seconds):
            line = watch.line()
            if line is not None and line != last:
                ui = f"; UI until this process ends: {watch.ui}" if watch.ui and not last else ""
                log.info(f"Spark: {line}{ui}")
                last = line

    reporter = threading.Thread(target=report, name="spark-progress", daemon=True)
    start = time.monotonic()
    reporter.start()
    try:
        yield
    except BaseException:
        watch.cancel()
        raise
    finally:
        stopped.set()
        reporter.join()
        watch.close()
    metadata["spark/seconds"] = round(time.monotonic() - start, 3)
    # The rows are committed: do not fail if the session was stopped since.
    with suppress(*_spark_errors()):
        metadata |= watch.metadata()


def _history_link(session: SparkSession) -> RawMetadata:
    """URL of the application after its process has ended, if known."""
    from dagster_delta.engines import is_connect, session_conf

    errors: tuple[type[Exception], ...] = (AttributeError, *_spark_errors())
    try:
        # Without a default, a Connect server logs an error where the setting is not set.
        template = session.conf.get(HISTORY_SERVER_URL, "")
        application = (
            session_conf(session, "spark.app.id")
            if is_connect(session)
            else session.sparkContext.applicationId
        )
    except errors:
        return {}
    if not template or not application:
        return {}
    url = template.replace(APPLICATION_ID, application)
    return {"spark/history_server": MetadataValue.url(url)}


def _spark_errors() -> tuple[type[Exception], ...]:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return Py4JError, PySparkException


def _watch_of(session: SparkSession) -> _Watch:
    from dagster_delta.engines import is_connect

    if is_connect(session):
        return _ConnectWatch(session)
    try:
        context: SparkContext = session.sparkContext
        context.getLocalProperty(_JOB_GROUP)
    except _spark_errors():
        return _Watch()
    return _ClassicWatch(context)


class _Watch:
    """Reports nothing: some platforms give notebooks no access to the context of the session."""

    ui: str | None = None
    """Address of a UI that is available while this process runs."""

    def line(self) -> str | None:
        """Progress of Spark; None if it is idle."""
        return None

    def metadata(self) -> RawMetadata:
        """Totals of the work."""
        return {}

    def cancel(self) -> None:
        """Cancel the jobs that run: the step has failed or was interrupted."""

    def close(self) -> None:
        """Restore the session."""


class _ClassicWatch(_Watch):
    """The jobs that start in the job group of this thread from now on."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        given = context.getLocalProperty(_JOB_GROUP)
        self._own_group = None if given else f"dagster-{uuid.uuid4()}"
        self._group = given or str(self._own_group)
        if self._own_group:
            context.setLocalProperty(_JOB_GROUP, self._own_group)
        self._before: frozenset[int] = frozenset()
        self._before = frozenset(self._job_ids())
        self.ui = context.uiWebUrl

    def close(self) -> None:
        if self._own_group:
            self._context.setLocalProperty(_JOB_GROUP, None)  # type: ignore[arg-type]

    def line(self) -> str | None:
        active = frozenset(self._context.statusTracker().getActiveStageIds())
        parts = [
            f"stage {stage.stageId} ({stage.name.partition(' at ')[0]}): "
            f"{stage.numCompletedTasks} of {stage.numTasks} tasks done, "
            f"{stage.numActiveTasks} running"
            for stage in self._list_stages()
            if stage.stageId in active
        ]
        return "; ".join(parts) or None

    def _list_stages(self) -> list[Any]:
        tracker = self._context.statusTracker()
        jobs = [tracker.getJobInfo(job_id) for job_id in self._job_ids()]
        ids = sorted({stage for job in jobs if job is not None for stage in job.stageIds})
        found = [tracker.getStageInfo(stage_id) for stage_id in ids]
        return [stage for stage in found if stage is not None]

    def _job_ids(self) -> list[int]:
        ids = self._context.statusTracker().getJobIdsForGroup(self._group)
        return [job_id for job_id in ids if job_id not in self._before]

    def metadata(self) -> RawMetadata:
        stages = self._list_stages()
        return {
            "spark/application_id": self._context.applicationId,
            "spark/jobs": len(self._job_ids()),
            "spark/stages": len(stages),
            "spark/tasks": sum(stage.numCompletedTasks for stage in stages),
            "spark/failed_tasks": sum(stage.numFailedTasks for stage in stages),
            **stage_totals(self._context, frozenset(stage.stageId for stage in stages)),
        }


class _ConnectWatch(_Watch):
    """Progress that a Connect server reports for the queries of this thread, every two seconds.

    It has no totals: work that ended between two reports is missing, so every sum could be too low.
    """

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._thread = threading.get_ident()
        self._stages: dict[tuple[str | None, int], Any] = {}
        self._running = 0
        self._tag = f"dagster-{uuid.uuid4()}"
        session.addTag(self._tag)
        session.registerProgressHandler(self._record_progress)  # type: ignore[arg-type]

    def _record_progress(
        self,
        stages: Iterable[Any] | None,
        inflight_tasks: int,
        operation_id: str | None,
        done: bool,
    ) -> None:
        if threading.get_ident() != self._thread:
            return
        self._running = 0 if done else inflight_tasks
        for stage in stages or ():
            self._stages[operation_id, stage.stage_id] = stage

    def cancel(self) -> None:
        # Servers other than Spark's may not know the call, and a lost one does not answer.
        with suppress(*_spark_errors()):
            self._session.interruptTag(self._tag)

    def close(self) -> None:
        self._session.removeTag(self._tag)
        self._session.removeProgressHandler(self._record_progress)  # type: ignore[arg-type]

    def line(self) -> str | None:
        parts = [
            f"stage {stage.stage_id}: {stage.num_completed_tasks} of {stage.num_tasks} tasks done"
            for stage in self._stages.copy().values()
            if not stage.done
        ]
        if not (self._running and parts):
            return None
        return f"{self._running} tasks running; {'; '.join(parts)}"


_MOVED_BYTES = {
    "spark/input_bytes": "inputBytes",
    "spark/shuffle_read_bytes": "shuffleReadBytes",
    "spark/shuffle_write_bytes": "shuffleWriteBytes",
    "spark/spilled_bytes": "diskBytesSpilled",
}
"""Keys of the metadata to fields of a stage in the UI of Spark: bytes read from files and caches,
shuffled, and spilled to disk for lack of memory."""


def stage_totals(context: SparkContext, ids: frozenset[int]) -> RawMetadata:
    """What all attempts of some stages have moved, from the UI of the application; empty if it does
    not answer: it may be disabled, unreachable or require a login.
    """
    url, application = context.uiWebUrl, urllib.parse.quote(context.applicationId or "", safe="")
    if url is None or not url.startswith(("http://", "https://")) or not ids:
        return {}
    # The driver runs on this machine, so use no proxy.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(
            f"{url}/api/v1/applications/{application}/stages", timeout=_SECONDS_TO_ANSWER
        ) as answer:
            content = answer.read(_MAX_ANSWER_BYTES)
        stages = msgspec.json.decode(content, type=list[dict[str, Any]])
    except (OSError, HTTPException, msgspec.DecodeError):
        return {}
    moved = [stage for stage in stages if stage.get("stageId") in ids]

    def total(field: str) -> int:
        return sum(stage.get(field, 0) for stage in moved)

    totals: RawMetadata = {key: total(field) for key, field in _MOVED_BYTES.items()}
    return {**totals, "spark/task_seconds": total("executorRunTime") / 1000}


def physical_plan(frame: DataFrame) -> str | None:
    """The plan as from `EXPLAIN FORMATTED`, without secrets and cut to `MAX_PLAN_CHARACTERS`; None
    if Spark does not return it. It runs no job.
    """
    try:
        rows = frame.sparkSession.sql("EXPLAIN FORMATTED SELECT * FROM {frame}", frame=frame)
        plan = str(rows.collect()[0][0]).strip()
    except _spark_errors():
        return None
    # Cut later than needed, so that a secret before the limit is complete and is masked.
    shown = without_secrets(plan[: 2 * MAX_PLAN_CHARACTERS])[:MAX_PLAN_CHARACTERS]
    if len(plan) <= MAX_PLAN_CHARACTERS:
        return shown
    return f"{shown}\n… cut, of {len(plan):,} characters"


def without_secrets(text: str) -> str:
    """The text with everything that resembles a password, token or key replaced by asterisks."""
    text = _IN_URL.sub(f"{_HIDDEN}@", text)
    text = _PUSHED.sub(rf"\g<1>{_HIDDEN})", text)
    text = _NAMED.sub(rf"\g<1>{_HIDDEN}", text)
    return _KEY.sub(_HIDDEN, text)
