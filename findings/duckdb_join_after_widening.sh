#!/usr/bin/env bash
# DuckDB 1.5.5 with its extension `delta` 1.5.5 refuses `IN (SELECT …)`, and joins, on a column of a
# Delta table that was widened.
#
# The Bloom filter of the join is pushed to files with the older type, which cannot take it. Without
# that pushdown, and for columns that keep their type, the rows are found. It needs Java 17.
#
# Seen on 2026-11-29, of 500 rows:
#   wider column: NotImplementedException: Not implemented Error: Can't convert TableFilterType (BLOOM_FILTER) from global to local indexes
#   other column: 500 rows
#   wider column, no pushdown: 500 rows
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
spark.sql(
    f"CREATE TABLE {table} (id INT, n INT) USING delta "
    "TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"
)
spark.sql(f"INSERT INTO {table} SELECT id, id FROM range(1000)")
spark.sql(f"ALTER TABLE {table} ALTER COLUMN n TYPE BIGINT")

connection = duckdb.connect()
extension = next(Path(sysconfig.get_path("purelib"), "duckdb_extension_delta").rglob("*.duckdb_extension"))
connection.execute(f"LOAD '{extension}'")
SCAN = "delta_scan('t')"


def count(column, optimizers=""):
    connection.execute(f"SET disabled_optimizers = '{optimizers}'")
    query = f"SELECT {column} FROM {SCAN} WHERE id % 2 = 0"
    try:
        found = connection.execute(f"SELECT count(*) FROM {SCAN} WHERE {column} IN ({query})")
        return f"{found.fetchone()[0]} rows"
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


print("duckdb", duckdb.__version__)
said = [count("n"), count("id"), count("n", "join_filter_pushdown")]
for what, answer in zip(("wider column", "other column", "wider column, no pushdown"), said):
    print(f"{what}: {answer}")
changed = "BLOOM_FILTER" not in said[0] or said[1:] != ["500 rows", "500 rows"]
print("DIFFERENT" if changed else "as described")
raise SystemExit(changed)
PY
