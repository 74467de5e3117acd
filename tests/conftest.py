"""Fixtures that more than one layer needs: the golden tables and the shared Spark session."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.families import PARTS, draw, is_turn_on_connect
from tests.reference.jars import resolve_jars
from tests.sessions import (
    CONNECT_ONLY,
    ON_SAIL,
    SAIL_LIMITS,
    classic_session,
    connect_session_alone,
    connect_session_beside,
    java_is_there,
    sail_session,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOLDEN_TABLES = Path(
    os.environ.get("GOLDEN_TABLES", Path(__file__).parents[2] / "shared" / "tables")
)

EXHAUSTIVE_TURN = os.environ.get("EXHAUSTIVE_TURN")
"""Which part of the tests that take turns `make test-ci` runs."""

# A deadline is an assertion on time: it fails on a busy machine and says nothing about the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


SESSIONS = {"spark", "delta_spark", "connect_session", "sail_url"}


def pytest_report_header() -> str | None:
    """How to repeat what was drawn."""
    if EXHAUSTIVE_TURN is None:
        return None
    parts = (
        f"{int(EXHAUSTIVE_TURN) % count + 1} of {count} of {mark}" for mark, count in PARTS.items()
    )
    return f"drawn tests: {', '.join(parts)}; EXHAUSTIVE_TURN={EXHAUSTIVE_TURN} draws them again"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that need Spark, and leave out those that the other pass runs.

    One pass has classic sessions, the other (`make test-connect`) sessions of Connect alone:

    - tests of the embedded engine, of delta-spark and of no engine run in the first;
    - tests that ask for `spark` run in both, unless they are marked `classic`; in `make test-ci` the
      second has a seventh of their modules by turns;
    - the conformance suite runs on Arrow and classic Spark in the first, on Connect in the second;
    - tests that ask for `connect_session` run in the second, and in the first if they are marked
      `classic`: they are about both kinds in one process.
    """
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        asked = _sessions(item)
        if asked:
            item.add_marker(pytest.mark.spark)
        if "delta_spark" in asked:
            item.add_marker(pytest.mark.delta_spark)
        classic = item.get_closest_marker("classic") is not None
        # Tests of Sail start a server of their own.
        on_connect = bool(asked - {"sail_url"}) and not classic
        if EXHAUSTIVE_TURN is not None and "connect_session" not in asked:
            on_connect = on_connect and is_turn_on_connect(item, int(EXHAUSTIVE_TURN))
        on_classic = "connect_session" not in asked or classic
        (kept if (on_connect if CONNECT_ONLY else on_classic) else left_out).append(item)
        if ON_SAIL and item.name in SAIL_LIMITS:
            item.add_marker(pytest.mark.xfail(reason=SAIL_LIMITS[item.name], strict=True))
    # One worker runs the tests on Spark from the start, the other meanwhile those without, and the
    # second only starts a JVM if there is work left for it.
    _mark_cases_beside_the_examples(kept)
    if EXHAUSTIVE_TURN is not None:
        draw(kept, int(EXHAUSTIVE_TURN))
    items[:] = sorted(kept, key=lambda item: item.get_closest_marker("spark") is None)
    config.hook.pytest_deselected(items=left_out)


def _mark_cases_beside_the_examples(items: list[pytest.Item]) -> None:
    counts: Counter[str] = Counter()
    for item in items:
        asked = item.get_closest_marker("examples")
        on_spark = item.get_closest_marker("spark") is not None
        if asked is None or (asked.kwargs.get("on_spark") and not on_spark):
            continue
        family = f"{item.nodeid.partition('[')[0]} {on_spark}"
        if counts[family] % asked.args[0]:
            item.add_marker(pytest.mark.exhaustive)
        counts[family] += 1


def _sessions(item: pytest.Item) -> set[str]:
    """The session fixtures that a test asks for, or that its engine asks for."""
    parameters = (
        item.callspec.params
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
        else {}
    )
    names = SESSIONS.intersection(getattr(item, "fixturenames", ()))
    return names | ({"connect_session"} if parameters.get("engine") == "connect" else set())


@pytest.fixture(scope="session")
def golden_tables() -> Path:
    """The directory of real tables, or a skip that says what to set."""
    if not GOLDEN_TABLES.is_dir():
        pytest.skip(f"no golden tables at {GOLDEN_TABLES}: set GOLDEN_TABLES to their directory")
    return GOLDEN_TABLES


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session per process: classic and local, or of a Connect server where that is asked for."""
    if ON_SAIL:
        with sail_session(tmp_path_factory.mktemp("sail")) as session:
            yield session
        return
    if not java_is_there():
        pytest.skip("Spark needs Java 17 or newer, and there is none")
    start = connect_session_alone if CONNECT_ONLY else classic_session
    with start(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture(scope="session")
def connect_session(spark: SparkSession) -> Iterator[SparkSession]:
    """A session of a Connect server, beside the classic one of this process if it has one."""
    if CONNECT_ONLY:
        yield spark
        return
    with connect_session_beside(spark) as session:
        yield session


@pytest.fixture(scope="session")
def delta_spark(spark: SparkSession) -> SparkSession:
    """The shared session as the reference implementation: `format("delta")` works in it."""
    jars, why = resolve_jars()
    if not jars:
        pytest.skip(why)
    return spark
