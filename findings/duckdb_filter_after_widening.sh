#!/usr/bin/env bash
# DuckDB 1.5.5 with its extension `delta` 1.5.5 gives rows to a filter that they do not satisfy, and
# loses others, after a column of integers was widened to a decimal.
#
# The older files have integers. DuckDB applies a comparison to the values of these files, with the
# constant rounded to an integer. A comparison with an expression of the column is applied to the
# decimals, and gives the right rows. It needs Java 17.
#
# Seen on 2026-11-29, of the rows 1.00, 2.00 and 2.25:
#   d = 1.6: DuckDB ['2.00'], delta-spark []
#   d > 1.6: DuckDB ['2.25'], delta-spark ['2.00', '2.25']
#   d >= 1.4: DuckDB ['1.00', '2.00', '2.25'], delta-spark ['2.00', '2.25']
#   d + 0 > 1.6: DuckDB ['2.00', '2.25'], delta-spark ['2.00', '2.25']
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
    f"CREATE TABLE {table} (d INT) USING delta TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"
)
spark.sql(f"INSERT INTO {table} VALUES (1), (2)")
spark.sql(f"ALTER TABLE {table} ALTER COLUMN d TYPE DECIMAL(12, 2)")
spark.sql(f"INSERT INTO {table} VALUES (2.25)")

connection = duckdb.connect()
extension = next(Path(sysconfig.get_path("purelib"), "duckdb_extension_delta").rglob("*.duckdb_extension"))
connection.execute(f"LOAD '{extension}'")


def ask(where):
    by_duckdb = connection.execute(f"SELECT d FROM delta_scan('t') WHERE {where} ORDER BY d").fetchall()
    by_spark = spark.sql(f"SELECT d FROM {table} WHERE {where} ORDER BY d").collect()
    found = [[str(value) for (value,) in map(tuple, rows)] for rows in (by_duckdb, by_spark)]
    print(f"{where}: DuckDB {found[0]}, delta-spark {found[1]}")
    return found[0] == found[1]


print("duckdb", duckdb.__version__)
agree = [ask(where) for where in ("d = 1.6", "d > 1.6", "d >= 1.4", "d + 0 > 1.6")]
changed = agree != [False, False, False, True]
print("DIFFERENT: another comparison agrees" if changed else "as described")
raise SystemExit(changed)
PY
