#!/usr/bin/env bash
# daft 0.7.26 cannot read a Delta table after DROP COLUMN of a column that stands before another one:
# it says that the Parquet file is corrupt, and reads that file itself without an error.
#
# The table is one of delta-spark. If the last column was dropped, or only columns before the dropped
# one are asked for, the rows are right. It needs Java 17.
#
# Seen on 2026-11-29:
#   first (id, a, b without a): DaftError::CorruptFile Failed to decode parquet column …: External: failed to fill whole buffer
#   first, select id: {'id': [1]}
#   last (id, a, b without b): {'id': [1], 'a': ['x']}
#   the file of first, by read_parquet: 3 columns, 1 row
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
  daft==0.7.26 deltalake==1.6.6 pyarrow==25.0.1 delta-spark==4.4.0
cd "$work"
# The JARs of Delta Lake come to the temporary folder, too.
export JAVA_TOOL_OPTIONS="-Duser.home=$work"
PYSPARK_PYTHON="$work/venv/bin/python" "$work/venv/bin/python" - <<'PY' 2>"$work/stderr" || { cat "$work/stderr"; exit 1; }
from pathlib import Path

import daft
from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession

builder = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
)
spark = configure_spark_with_delta_pip(builder).getOrCreate()
properties = "'delta.columnMapping.mode' = 'name', 'delta.enableDeletionVectors' = 'false'"
for name, dropped in (("first", "a"), ("last", "b")):
    table = f"delta.`{Path(name).absolute()}`"
    spark.sql(f"CREATE TABLE {table} (id BIGINT, a STRING, b BIGINT) USING delta TBLPROPERTIES ({properties})")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'x', 2)")
    spark.sql(f"ALTER TABLE {table} DROP COLUMN {dropped}")
spark.stop()

try:
    refused = f"no error: {daft.read_deltalake('first').to_pydict()}"
except Exception as error:
    refused = str(error)
before = daft.read_deltalake("first").select("id").to_pydict()
last = daft.read_deltalake("last").to_pydict()
(file,) = (path for path in Path("first").rglob("*.parquet") if "_delta_log" not in path.parts)
own = daft.read_parquet(str(file)).to_pydict()
print("daft", daft.__version__)
print("first (id, a, b without a):", refused)
print("first, select id:", before)
print("last (id, a, b without b):", last)
print(f"the file of first, by read_parquet: {len(own)} columns, {len(next(iter(own.values())))} row")
changed = "failed to fill whole buffer" not in refused or before != {"id": [1]}
changed = changed or last != {"id": [1], "a": ["x"]} or len(own) != 3
print("DIFFERENT" if changed else "as described")
raise SystemExit(changed)
PY
