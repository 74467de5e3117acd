"""The page's catalog of a Hive metastore, on a metastore of Hive itself, kept by Derby."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.catalogs.test_catalog_page import PAGE
from tests.reference.jars import delta_spark_settings, resolve_jars

pytestmark = pytest.mark.delta_spark
SCRIPT = Path(__file__).with_name("use_hive_catalog.py")


def test_assets_are_tables_that_a_hive_metastore_names(tmp_path: Path) -> None:
    jars, why = resolve_jars()
    if not jars:
        pytest.skip(why)
    programs = re.findall(r"(?ms)^```python\n(.*?)^```$", PAGE.read_text())
    (program,) = [text for text in programs if "HiveCatalog" in text]
    (tmp_path / "program.py").write_text(program)
    settings = delta_spark_settings(jars) | {
        "spark.master": "local[1]",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": "jdbc:derby:memory:metastore;create=true",
    }
    arguments = [str(tmp_path), str(tmp_path / "program.py"), json.dumps(settings)]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
