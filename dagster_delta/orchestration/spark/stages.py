"""Bytes and time of the stages of a Spark application, from the REST interface of its UI."""

from __future__ import annotations

import urllib.parse
import urllib.request
from collections import Counter
from http.client import HTTPException
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pyspark import SparkContext

_SECONDS_TO_ANSWER = 4.0
_MAX_ANSWER_BYTES = 64 << 20
_MAX_FAILURES = 2

_FAILURES: Counter[str] = Counter()
"""Number of times that a UI did not answer this process."""


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
        return [each for each in stages if each.stage_id in ids]
