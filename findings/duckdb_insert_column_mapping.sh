#!/usr/bin/env bash
# DuckDB 1.5.5 with its extension `delta` 1.5.5 inserts a row into a Delta table with column mapping,
# and every reader sees NULL in each of its columns.
#
# The protocol of the table is (3, 7) and names `columnMapping`. The file that DuckDB adds has the
# logical names of the columns, where the schema of the table gives them physical ones, and the
# statistics in the log have the logical names as well. DuckDB itself shows the row as NULLs, too.
# With the protocol (2, 5), which implies `checkConstraints`, the insert is refused. It needs Java 17.
#
# Seen on 2026-11-29:
#   inserted by DuckDB: (2, 'duck')
#   columns of its file: ['id', 's']
#   DuckDB reads: [(None, None), (1, 'spark')]
#   delta-spark reads: [(None, None), (1, 'spark')]
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
  duckdb==1.5.5 duckdb-extension-delta==1.5.5 pyarrow==26.0.1 delta-spark==4.4.0
cd "$work"
# The JARs of Delta Lake come to the temporary folder, too.
export JAVA_TOOL_OPTIONS="-Duser.home=$work"
PYSPARK_PYTHON="$work/venv/bin/python" "$work/venv/bin/python" - <<'PY' 2>"$work/stderr" || { cat "$work/stderr"; exit 1; }
import sysconfig
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
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
properties = "'delta.columnMapping.mode' = 'name', 'delta.enableDeletionVectors' = 'true'"
spark.sql(f"CREATE TABLE {table} (id INT, s STRING) USING delta TBLPROPERTIES ({properties})")
spark.sql(f"INSERT INTO {table} VALUES (1, 'spark')")

connection = duckdb.connect()
extension = next(Path(sysconfig.get_path("purelib"), "duckdb_extension_delta").rglob("*.duckdb_extension"))
connection.execute(f"LOAD '{extension}'")
connection.execute("ATTACH 't' AS target (TYPE delta)")
connection.execute("INSERT INTO target VALUES (2, 'duck')")

file = next(Path("t").rglob("duckdb*.parquet"))
by_duckdb = sorted(connection.execute("FROM target").fetchall(), key=str, reverse=True)
rows = spark.sql(f"SELECT * FROM {table}").collect()
by_spark = sorted(map(tuple, rows), key=str, reverse=True)
print("duckdb", duckdb.__version__)
print("inserted by DuckDB:", (2, "duck"))
print("columns of its file:", pq.read_schema(file).names)
print("DuckDB reads:", by_duckdb)
print("delta-spark reads:", by_spark)
changed = (None, None) not in by_duckdb or (None, None) not in by_spark
print("DIFFERENT: the row has its values" if changed else "as described")
raise SystemExit(changed)
PY
