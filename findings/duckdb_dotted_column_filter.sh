#!/usr/bin/env bash
# DuckDB 1.5.5 with its extension `delta` 1.5.5 loses rows under a filter on a column `c.d` of a Delta
# table with column mapping that has a struct `c` with a field `d`, too.
#
# It skips files by the bounds of the field of the struct, in place of those of the column. Without a
# filter it returns both rows, and delta-spark finds the row. It needs Java 17.
#
# Seen on 2026-11-29:
#   all rows: [(100,), (200,)]
#   "c.d" > 150: []
#   delta-spark, `c.d` > 150: [(200,)]
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
  duckdb==1.5.5 duckdb-extension-delta==1.5.5 delta-spark==4.4.0
cd "$work"
# The JARs of Delta Lake come to the temporary folder, too.
export JAVA_TOOL_OPTIONS="-Duser.home=$work"
PYSPARK_PYTHON="$work/venv/bin/python" "$work/venv/bin/python" - <<'PY' 2>"$work/stderr" || { cat "$work/stderr"; exit 1; }
import sysconfig
from pathlib import Path

import duckdb
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
columns = "`c.d` BIGINT, c STRUCT<d: BIGINT>"
spark.sql(f"CREATE TABLE {table} ({columns}) USING delta TBLPROPERTIES ({properties})")
for number in (100, 200):
    spark.sql(f"INSERT INTO {table} VALUES ({number}, named_struct('d', {300 - number}L))")

connection = duckdb.connect()
extension = next(Path(sysconfig.get_path("purelib"), "duckdb_extension_delta").rglob("*.duckdb_extension"))
connection.execute(f"LOAD '{extension}'")
query = """SELECT "c.d" FROM delta_scan('t')"""
rows = sorted(connection.execute(query).fetchall())
found = connection.execute(f'{query} WHERE "c.d" > 150').fetchall()
by_spark = [tuple(row) for row in spark.sql(f"SELECT `c.d` FROM {table} WHERE `c.d` > 150").collect()]
print("duckdb", duckdb.__version__)
print("all rows:", rows)
print('"c.d" > 150:', found)
print("delta-spark, `c.d` > 150:", by_spark)
assert (rows, by_spark) == ([(100,), (200,)], [(200,)])
print("DIFFERENT: the row is found" if found else "as described")
raise SystemExit(bool(found))
PY
