#!/usr/bin/env bash
# `to_pyarrow_table()` of deltalake 1.6.6 gives NULL in each column of a Delta table with column
# mapping, without an error. Its QueryBuilder gives the rows, from the same package and table.
#
# The files have the physical names of the columns, and the scan looks for the logical ones. A column
# that existed before the mapping, and was renamed later, is NULL in the same way. It needs Java 17.
#
# Seen on 2026-11-29:
#   to_pyarrow_table: [{'id': None, 's': None}]
#   QueryBuilder: [{'id': 1, 's': 'spark'}]
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
  deltalake==1.6.6 pyarrow==26.0.1 delta-spark==4.4.0
cd "$work"
# The JARs of Delta Lake come to the temporary folder, too.
export JAVA_TOOL_OPTIONS="-Duser.home=$work"
PYSPARK_PYTHON="$work/venv/bin/python" "$work/venv/bin/python" - <<'PY' 2>"$work/stderr" || { cat "$work/stderr"; exit 1; }
from pathlib import Path

import deltalake
import pyarrow as pa
from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession

builder = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
)
spark = configure_spark_with_delta_pip(builder).getOrCreate()
table = f"delta.`{Path('t').absolute()}`"
properties = "'delta.columnMapping.mode' = 'name', 'delta.enableDeletionVectors' = 'false'"
spark.sql(f"CREATE TABLE {table} (id INT, s STRING) USING delta TBLPROPERTIES ({properties})")
spark.sql(f"INSERT INTO {table} VALUES (1, 'spark')")
assert [tuple(row) for row in spark.sql(f"SELECT * FROM {table}").collect()] == [(1, "spark")]
spark.stop()

opened = deltalake.DeltaTable("t")
scanned = opened.to_pyarrow_table().to_pylist()
builder = deltalake.QueryBuilder().register("t", opened)
queried = pa.table(builder.execute("SELECT * FROM t").read_all()).to_pylist()
print("deltalake", deltalake.__version__)
print("to_pyarrow_table:", scanned)
print("QueryBuilder:", queried)
changed = scanned != [{"id": None, "s": None}] or queried != [{"id": 1, "s": "spark"}]
print("DIFFERENT: the scan has the values" if changed else "as described")
raise SystemExit(changed)
PY
