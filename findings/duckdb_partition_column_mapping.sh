#!/usr/bin/env bash
# DuckDB 1.5.5 with its extension `delta` 1.5.5 reads NULL from the partition columns of a Delta table
# with column mapping, or the values of another partition column, without an error.
#
# The table is one of delta-spark. The values are right if the only partition column is the first
# column of the table, or if the first column has its own name in the files. It needs Java 17.
#
# Seen on 2026-11-29, of the columns a, b and c:
#   partitioned by c: DuckDB [('1', 'one', None)], delta-spark [('1', 'one', 'two')]
#   partitioned by a, c: DuckDB [('two', 'one', None)], delta-spark [('1', 'one', 'two')]
#   partitioned by a: DuckDB [('1', 'one', 'two')], delta-spark [('1', 'one', 'two')]
#   partitioned by c, WHERE c = 'two': []
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
connection = duckdb.connect()
extension = next(Path(sysconfig.get_path("purelib"), "duckdb_extension_delta").rglob("*.duckdb_extension"))
connection.execute(f"LOAD '{extension}'")
print("duckdb", duckdb.__version__)
found = {}
for columns in ("c", "a, c", "a"):
    place = Path("by_" + columns.replace(", ", "_")).absolute()
    spark.sql(
        f"CREATE TABLE delta.`{place}` (a STRING, b STRING, c STRING) USING delta "
        f"PARTITIONED BY ({columns}) TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    )
    spark.sql(f"INSERT INTO delta.`{place}` VALUES ('1', 'one', 'two')")
    found[columns] = connection.execute(f"FROM delta_scan('{place}')").fetchall()
    by_spark = [tuple(row) for row in spark.sql(f"SELECT * FROM delta.`{place}`").collect()]
    print(f"partitioned by {columns}: DuckDB {found[columns]}, delta-spark {by_spark}")
filtered = connection.execute(f"FROM delta_scan('{Path('by_c').absolute()}') WHERE c = 'two'").fetchall()
print("partitioned by c, WHERE c = 'two':", filtered)
right = ("1", "one", "two")
described = {"c": [("1", "one", None)], "a, c": [("two", "one", None)], "a": [right]}
changed = found != described or filtered != []
print("DIFFERENT" if changed else "as described")
raise SystemExit(changed)
PY
