"""Sends this package to the workers of a Spark session that do not have it installed."""

from __future__ import annotations

import atexit
import hashlib
import shutil
import tempfile
import weakref
import zipfile
from functools import cache
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dagster_delta import errors
from dagster_delta.errors import InvalidArgument

_SHIPPED: weakref.WeakSet[SparkSession] = weakref.WeakSet()


def ship_package(spark: SparkSession) -> None:
    """Send this package to the Python workers of a session.

    Its dependencies have compiled parts and must already be in their Python: pyarrow, pandas,
    msgspec and pyroaring, and for tables in object stores fsspec and the store's client. For
    streams from the log the driver of a Connect server needs the package too, installed.

    Args:
        spark: classic or Connect. Sending to the same session again does nothing.

    Raises:
        InvalidArgument: the session does not accept files.
    """
    if spark in _SHIPPED:
        return
    try:
        spark.addArtifacts(str(_package_file()), pyfile=True)
    except PySparkException as error:
        raise InvalidArgument(
            f"the session cannot send files to its workers ({error}): install "
            "dagster-delta-protocol into their Python instead"
        ) from error
    _SHIPPED.add(spark)


@cache
def _package_file() -> Path:
    """A ZIP file with the modules of the package. It stays until this process ends, because
    executors that are started later fetch it from here.
    """
    package = Path(errors.__file__).parent
    directory = Path(tempfile.mkdtemp(prefix="dagster-delta-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    modules = sorted(package.rglob("*.py"))
    content = hashlib.sha256()
    for module in modules:
        content.update(module.read_bytes())
    # The session would refuse another version of the package under the same name.
    target = directory / f"dagster_delta-{content.hexdigest()[:16]}.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as file:
        for module in modules:
            file.write(module, module.relative_to(package.parent).as_posix())
    return target
