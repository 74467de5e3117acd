#!/usr/bin/env bash
# `count()` of chdb 4.4.0 (ClickHouse 26.9) counts the rows of a Delta table that a deletion vector
# deletes. `count(column)`, a sum, and the rows themselves leave them out.
#
# The table is one of delta-spark, after a DELETE. It needs Java 17.
#
# Seen on 2026-11-29, of 10 rows with 4 deleted ones:
#   count(): 10
#   count(id): 6
#   rows: 6
#   delta-spark, count(*): 6
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
  chdb==4.4.0 pyarrow==26.0.1 pandas==2.3.3 delta-spark==4.4.0
cd "$work"
# The JARs of Delta Lake come to the temporary folder, too.
export JAVA_TOOL_OPTIONS="-Duser.home=$work"
PYSPARK_PYTHON="$work/venv/bin/python" "$work/venv/bin/python" - <<'PY' 2>"$work/stderr" || { cat "$work/stderr"; exit 1; }
import os
from pathlib import Path

from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession

builder = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
)
spark = configure_spark_with_delta_pip(builder).getOrCreate()
uri = Path("t").absolute()
table = f"delta.`{uri}`"
properties = "'delta.enableDeletionVectors' = 'true'"
spark.sql(f"CREATE TABLE {table} (id BIGINT) USING delta TBLPROPERTIES ({properties})")
spark.range(0, 10, 1, 1).write.format("delta").mode("append").save(str(uri))
spark.sql(f"DELETE FROM {table} WHERE id < 4")
by_spark = spark.sql(f"SELECT count(*) FROM {table}").collect()[0][0]
spark.stop()

os.chdir("/")  # chdb reads files below its directory alone
import chdb


def ask(selected: str) -> list[int]:
    return chdb.query(f"SELECT {selected} AS n FROM deltaLakeLocal('{uri}')", "ArrowTable")["n"].to_pylist()


(counted,), (of_column,), rows = ask("count()"), ask("count(id)"), ask("id")
print("chdb", chdb.chdb_version if isinstance(chdb.chdb_version, str) else ".".join(map(str, chdb.chdb_version)))
print("count():", counted)
print("count(id):", of_column)
print("rows:", len(rows))
print("delta-spark, count(*):", by_spark)
changed = (counted, of_column, len(rows), by_spark) != (10, 6, 6, 6)
print("DIFFERENT" if changed else "as described")
raise SystemExit(changed)
PY
