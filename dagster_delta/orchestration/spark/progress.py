"""The work of Spark for a step, in the log of its run during the step, and in its metadata
afterwards.

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
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from logging import Logger
from typing import TYPE_CHECKING, Any, cast

import msgspec
from dagster import MetadataValue

from dagster_delta.engines import is_spark_frame
from dagster_delta.orchestration.metadata_keys import RawMetadata

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

HISTORY_SERVER_URL = "spark.dagster_delta.historyServerUrl"
"""Session setting: URL of an application in the History Server, with `APPLICATION_ID` in it."""
APPLICATION_ID = "{application_id}"
"""Placeholder in `HISTORY_SERVER_URL` for the id of the application."""

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
_MAX_FAILURES = 2

_FAILURES: Counter[str] = Counter()
"""Number of times that a UI did not answer this process."""


@dataclass(slots=True)
class SparkWork:
    """Work of Spark for one step; empty without a session."""

    metadata: RawMetadata = field(default_factory=dict)
    """For the metadata of the output, after the work."""


@contextmanager
def watch_spark(
    data: object, log: Logger, *, every_seconds: float = _SECONDS_BETWEEN_REPORTS
) -> Iterator[SparkWork]:
    """Report on the Spark jobs that the block starts in this thread.

    `data` is the DataFrame or Spark session that the block uses; for other values, nothing is
    reported. Work that is shorter than `every_seconds` has no line in the log. If the block fails
    because the JVM of the session is gone, it raises SparkSessionLost.
    """
    work = SparkWork()
    frame = _frame(data)
    session = _session(data) if frame is None else frame.sparkSession
    if session is None:
        yield work
        return
    from dagster_delta.engines.spark.executor_reports import counting_written_bytes
    from dagster_delta.engines.spark.session.session import naming_lost_session

    with naming_lost_session():
        with counting_written_bytes() as written:
            yield from _watched(work, session, log, every_seconds)
        if written.size_bytes:
            work.metadata["spark/output_bytes"] = written.size_bytes
        plan = None if frame is None else physical_plan(frame)
        if plan is not None:
            # The plan may contain backticks, but no line of backticks only.
            work.metadata["spark/plan"] = MetadataValue.md(f"```text\n{plan}\n```")


def _watched(
    work: SparkWork, session: SparkSession, log: Logger, every_seconds: float
) -> Iterator[SparkWork]:
    watch = _watch_of(session)
    stopped = threading.Event()
    reporter = threading.Thread(
        target=_report,
        args=(watch, log, every_seconds, stopped),
        name="spark-progress",
        daemon=True,
    )
    start = time.monotonic()
    reporter.start()
    try:
        yield work
    except BaseException:
        watch.cancel()
        raise
    finally:
        stopped.set()
        reporter.join()
        watch.close()
    work.metadata["spark/seconds"] = round(time.monotonic() - start, 3)
    work.metadata.update(watch.metadata())
    work.metadata.update(_history_link(session))


def _frame(data: object) -> DataFrame | None:
    if not is_spark_frame(data):
        return None
    return data if hasattr(data, "sparkSession") else None  # type: ignore[return-value]


def _session(data: object) -> SparkSession | None:
    is_session = is_spark_frame(data) and type(data).__name__ == "SparkSession"
    return cast("SparkSession", data) if is_session else None


def _history_link(session: SparkSession) -> RawMetadata:
    """URL of the application after its process has ended, if known."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from dagster_delta.engines.spark.session.session import is_connect, session_conf

    try:
        # Without a default, a Connect server logs an error where the setting is not set.
        template = session.conf.get(HISTORY_SERVER_URL, "")
        application = (
            session_conf(session, "spark.app.id")
            if is_connect(session)
            else session.sparkContext.applicationId
        )
    except (AttributeError, Py4JError, PySparkException):
        # The rows are committed: do not fail if the session was stopped since.
        return {}
    if not template or not application:
        return {}
    url = template.replace(APPLICATION_ID, application)
    return {"spark/history_server": MetadataValue.url(url)}


def _watch_of(session: SparkSession) -> _Watch:
    from dagster_delta.engines.spark.session.session import is_connect

    if is_connect(session):
        return _ConnectWatch(session)
    context = _classic_context(session)
    return _Watch() if context is None else _ClassicWatch(context)


def _classic_context(session: SparkSession) -> SparkContext | None:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        context: SparkContext = session.sparkContext
        context.getLocalProperty(_JOB_GROUP)
    except (Py4JError, PySparkException):
        return None
    return context


def _report(watch: _Watch, log: Logger, every_seconds: float, stopped: threading.Event) -> None:
    """Log the progress at intervals, if it has changed."""
    last = None
    ui = watch.ui
    while not stopped.wait(every_seconds):
        line = watch.line()
        if line is not None and line != last:
            log.info(f"Spark: {line}" + (f"; UI until this process ends: {ui}" if ui else ""))
            last, ui = line, None


class _Watch:
    """Reports nothing: some platforms give notebooks no access to the context of the session."""

    @property
    def ui(self) -> str | None:
        """Address of a UI that is available while this process runs."""
        return None

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
        self._before = frozenset(self._ids_of_group())
        self._metrics = StageMetrics(context)

    @property
    def ui(self) -> str | None:
        return self._context.uiWebUrl

    def close(self) -> None:
        if self._own_group:
            self._context.setLocalProperty(_JOB_GROUP, None)  # type: ignore[arg-type]

    def line(self) -> str | None:
        active = frozenset(self._context.statusTracker().getActiveStageIds())
        stages = [stage for stage in self._stages() if stage.stageId in active]
        moved = self._metrics.of_stages(frozenset(stage.stageId for stage in stages), active=True)
        parts = [
            f"stage {stage.stageId} ({stage.name.partition(' at ')[0]}): "
            f"{stage.numCompletedTasks} of {stage.numTasks} tasks done, "
            f"{stage.numActiveTasks} running"
            f"{_bytes_of([one for one in moved if one.stage_id == stage.stageId])}"
            for stage in stages
        ]
        return "; ".join(parts) or None

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

    def metadata(self) -> RawMetadata:
        from py4j.protocol import Py4JError

        try:
            return self._metadata()
        except Py4JError:
            # The rows are committed: do not fail if the session was stopped since.
            return {}

    def _metadata(self) -> RawMetadata:
        stages = self._stages()
        found: RawMetadata = {
            "spark/application_id": self._context.applicationId,
            "spark/jobs": len(self._job_ids()),
            "spark/stages": len(stages),
            "spark/tasks": sum(stage.numCompletedTasks for stage in stages),
            "spark/failed_tasks": sum(stage.numFailedTasks for stage in stages),
        }
        moved = self._metrics.of_stages(frozenset(stage.stageId for stage in stages))
        if moved:
            found["spark/input_bytes"] = sum(each.input_bytes for each in moved)
            found["spark/shuffle_read_bytes"] = sum(each.shuffle_read_bytes for each in moved)
            found["spark/shuffle_write_bytes"] = sum(each.shuffle_write_bytes for each in moved)
            found["spark/spilled_bytes"] = sum(each.disk_bytes_spilled for each in moved)
            found["spark/task_seconds"] = sum(each.executor_run_time for each in moved) / 1000
        return found


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
        session.registerProgressHandler(self._take)  # type: ignore[arg-type]

    def _take(
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
        from pyspark.errors import PySparkException

        # Servers other than Spark's may not know the call, and a lost one does not answer.
        with suppress(PySparkException):
            self._session.interruptTag(self._tag)

    def close(self) -> None:
        self._session.removeTag(self._tag)
        self._session.removeProgressHandler(self._take)  # type: ignore[arg-type]

    def line(self) -> str | None:
        if not self._running:
            return None
        stages = [each for each in self._stages.copy().values() if not each.done]
        parts = [
            f"stage {stage.stage_id}: {stage.num_completed_tasks} of {stage.num_tasks} tasks done"
            f"{_bytes_of([StageBytes(stage_id=0, input_bytes=stage.num_bytes_read)])}"
            for stage in stages
        ]
        return f"{self._running} tasks running; {'; '.join(parts)}" if parts else None


class StageBytes(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Bytes that one attempt of a stage has moved so far, and the time of its tasks."""

    stage_id: int
    """Number of the stage in its application."""
    input_bytes: int = 0
    """Read from files, and from data that Spark caches."""
    output_bytes: int = 0
    """Written by Spark itself. Files of Delta tables are written by Python, and are excluded."""
    shuffle_read_bytes: int = 0
    """Shuffle bytes read from other stages."""
    shuffle_write_bytes: int = 0
    """Shuffle bytes written for other stages."""
    disk_bytes_spilled: int = 0
    """Spilled to disk for lack of memory."""
    executor_run_time: int = 0
    """Milliseconds that its tasks ran, in total."""


class StageMetrics:
    """Queries the UI of an application, and stops when it does not answer: it may be disabled,
    unreachable or require a login.
    """

    def __init__(self, context: SparkContext) -> None:
        url = context.uiWebUrl
        application = urllib.parse.quote(context.applicationId or "", safe="")
        self._url = (
            f"{url}/api/v1/applications/{application}/stages"
            if url is not None and url.startswith(("http://", "https://"))
            else None
        )
        # The driver runs on this machine, so use no proxy.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def of_stages(self, ids: frozenset[int], *, active: bool = False) -> list[StageBytes]:
        """The bytes of every attempt of these stages; empty if the UI does not answer."""
        if self._url is None or not ids or _FAILURES[self._url] >= _MAX_FAILURES:
            return []
        try:
            query = "?status=active" if active else ""
            with self._opener.open(f"{self._url}{query}", timeout=_SECONDS_TO_ANSWER) as answer:
                content = answer.read(_MAX_ANSWER_BYTES)
            stages = msgspec.json.decode(content, type=list[StageBytes])
        except (OSError, HTTPException, msgspec.DecodeError):
            # The first answer of a busy driver may take long.
            _FAILURES[self._url] += 1
            return []
        return [stage for stage in stages if stage.stage_id in ids]


def _bytes_of(stages: list[StageBytes]) -> str:
    """Bytes that stages have moved so far, to append to their tasks."""
    amounts = {
        "read": sum(stage.input_bytes for stage in stages),
        "written": sum(stage.output_bytes for stage in stages),
        "shuffled in": sum(stage.shuffle_read_bytes for stage in stages),
        "shuffled out": sum(stage.shuffle_write_bytes for stage in stages),
        "spilled": sum(stage.disk_bytes_spilled for stage in stages),
    }
    return "".join(f", {amount / 1e6:,.1f} MB {what}" for what, amount in amounts.items() if amount)


def physical_plan(frame: DataFrame) -> str | None:
    """The plan as from `EXPLAIN FORMATTED`, without secrets and cut to `MAX_PLAN_CHARACTERS`; None
    if Spark does not return it. It runs no job.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        rows = frame.sparkSession.sql("EXPLAIN FORMATTED SELECT * FROM {frame}", frame=frame)
        plan = str(rows.collect()[0][0]).strip()
    except (Py4JError, PySparkException):
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
