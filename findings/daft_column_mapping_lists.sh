#!/usr/bin/env bash
# daft 0.7.26 reads NULL from each list column of a Delta table with column mapping, without an error.
#
# The other columns of the rows are right. With column mapping daft finds columns by field ids, and
# the elements of a list have none, as the protocol says. chdb 4.4.0 (ClickHouse 26.9) reads lists of
# structs of the same table as empty, and lists of numbers rightly. It needs Java 17.
#
# Seen on 2026-11-29, of the row (1, [1, 2], [{'a': 3}]):
#   daft: {'id': 1, 'numbers': None, 'structs': None}
#   chdb: {'id': 1, 'numbers': [1, 2], 'structs': []}
#   delta-spark: (1, [1, 2], [Row(a=3)])
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
  daft==0.7.26 deltalake==1.6.6 chdb==4.4.0 pyarrow==25.0.1 pandas==2.3.3 delta-spark==4.4.0
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
columns = "id INT, numbers ARRAY<INT>, structs ARRAY<STRUCT<a: INT>>"
properties = "'delta.columnMapping.mode' = 'name', 'delta.enableDeletionVectors' = 'false'"
spark.sql(f"CREATE TABLE {table} ({columns}) USING delta TBLPROPERTIES ({properties})")
spark.sql(f"INSERT INTO {table} VALUES (1, array(1, 2), array(named_struct('a', 3)))")
by_spark = [tuple(row) for row in spark.sql(f"SELECT * FROM {table}").collect()]
spark.stop()

import daft

by_daft = daft.read_deltalake(str(uri)).to_pylist()
os.chdir("/")  # chdb reads files below its directory alone
import chdb

by_chdb = chdb.query(f"SELECT * FROM deltaLakeLocal('{uri}')", "ArrowTable").to_pylist()
print("daft", daft.__version__)
print("daft:", by_daft[0])
print("chdb:", by_chdb[0])
print("delta-spark:", by_spark[0])
lists = by_daft[0]["numbers"], by_daft[0]["structs"], by_chdb[0]["numbers"], by_chdb[0]["structs"]
changed = lists != (None, None, [1, 2], [])
print("DIFFERENT" if changed else "as described")
raise SystemExit(changed)
PY
