"""Spark's daemon of Python workers with the imports of most tasks done.

A server outlives the code of its users, and a worker that runs several tasks keeps the modules of
the first. So each task gets a worker of its own, which the daemon forks: it finds the user's
modules as they are now, and does not import Arrow again.
"""

from __future__ import annotations

import sys

import pandas as pd  # noqa: F401 - for the workers, as the others
import pyarrow.compute  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import dagster_delta.engines.spark.read.read_tasks
import dagster_delta.engines.spark.write.tasks  # noqa: F401

if __name__ == "__main__":
    # Each worker would read the directory of pyspark.zip again, once for each package in it.
    sys.path_importer_cache.clear()
    manager()
