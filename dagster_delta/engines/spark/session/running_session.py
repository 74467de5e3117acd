"""The Spark session that already runs in this process, and the loss of its JVM."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dagster_delta.engines.spark.session.session import has_jvm, is_connect
from dagster_delta.errors import SparkSessionLost

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def running_session() -> SparkSession | None:
    """The session of this process, classic or Connect; None if it has none.

    Raises:
        SparkSessionLost: its JVM has ended.
    """
    return _classic_session() or _connect_session()


@contextmanager
def naming_lost_session() -> Iterator[None]:
    """Raise SparkSessionLost if the block fails because the JVM has ended: Spark itself reports a
    refused connection.

    Raises:
        SparkSessionLost: the block failed, and the JVM has ended.
    """
    try:
        yield
    except SparkSessionLost:
        raise
    except Exception as error:
        if _is_jvm_gone():
            raise _lost() from error
        raise


def _classic_session() -> SparkSession | None:
    from py4j.protocol import Py4JError, Py4JNetworkError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    if not has_jvm():
        return None
    try:
        session = SparkSession.active()
        # A session whose context was stopped has no context to ask.
        session.sparkContext.statusTracker()
    except (ConnectionError, Py4JNetworkError) as error:
        raise _lost() from error
    except Py4JError:
        # Some platforms do not give access to the context.
        return session
    except (AttributeError, PySparkException):
        return None
    return session


def _connect_session() -> SparkSession | None:
    module = sys.modules.get("pyspark.sql.connect.session")
    if module is None:
        return None
    from pyspark.errors import PySparkException

    try:
        session: SparkSession = module.SparkSession.active()
    except PySparkException:
        return None
    return session if is_connect(session) else None


def _is_jvm_gone() -> bool:
    """Whether the JVM that this process has started does not answer any more."""
    from py4j.protocol import Py4JError, Py4JNetworkError
    from pyspark.sql import SparkSession

    if not has_jvm():
        return False
    try:
        SparkSession.getActiveSession()
    except (ConnectionError, Py4JNetworkError):
        return True
    except Py4JError:
        return False
    return False


def _lost() -> SparkSessionLost:
    return SparkSessionLost(
        "the JVM of this process's Spark session is gone, and Spark starts no other one in the "
        "same process: somebody or the lack of memory killed it (spark.driver.memory says how much "
        "it takes). Run the step in a process of its own (multiprocess_executor), or launch the "
        "run again; what was not committed is not in the table"
    )
