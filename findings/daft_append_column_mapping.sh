#!/usr/bin/env bash
# daft 0.7.26 appends a row to a Delta table with column mapping, and delta-spark sees NULL in each
# of its columns, without an error.
#
# The file that daft adds has the names of the schema, where the table demands the physical ones, and
# no field ids: daft itself refuses to read the table after its own append. It needs Java 17.
#
# Seen on 2026-11-29, after delta-spark has inserted (1, 'spark') and daft has appended (2, 'daft'):
#   columns of its file: ['id', 's']
#   delta-spark: [(None, None), (1, 'spark')]
#   daft: DaftCoreException
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
  daft==0.7.26 deltalake==1.6.6 pyiceberg==0.12.0 pyarrow==25.0.1 delta-spark==4.4.0
cd "$work"
# The JARs of Delta Lake come to the temporary folder, too.
export JAVA_TOOL_OPTIONS="-Duser.home=$work"
PYSPARK_PYTHON="$work/venv/bin/python" "$work/venv/bin/python" - <<'PY' 2>"$work/stderr" || { cat "$work/stderr"; exit 1; }
from pathlib import Path

import daft
import pyarrow as pa
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
uri = Path("t").absolute()
table = f"delta.`{uri}`"
properties = "'delta.columnMapping.mode' = 'name', 'delta.enableDeletionVectors' = 'false'"
spark.sql(f"CREATE TABLE {table} (id INT, s STRING) USING delta TBLPROPERTIES ({properties})")
spark.sql(f"INSERT INTO {table} VALUES (1, 'spark')")
before = {*uri.rglob("*.parquet")}
rows = pa.table({"id": pa.array([2], pa.int32()), "s": ["daft"]})
daft.from_arrow(rows).write_deltalake(str(uri), mode="append")
(added,) = {*uri.rglob("*.parquet")} - before


def ordered(rows: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    return sorted(rows, key=str, reverse=True)


names = pq.ParquetFile(added).schema_arrow.names
by_spark = ordered([tuple(row) for row in spark.read.format("delta").load(str(uri)).collect()])
try:
    by_daft = str(daft.read_deltalake(str(uri)).to_pylist())
except Exception as error:
    by_daft = type(error).__name__
print("daft", daft.__version__)
print("columns of its file:", names)
print("delta-spark:", by_spark)
print("daft:", by_daft)
changed = names != ["id", "s"] or by_spark != [(None, None), (1, "spark")]
changed = changed or by_daft != "DaftCoreException"
print("DIFFERENT" if changed else "as described")
raise SystemExit(changed)
PY
