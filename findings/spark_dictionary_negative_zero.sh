#!/usr/bin/env bash
# Spark 4.2.0 does not find -0.0 by `= 0.0` in a Parquet file of its own, if values repeat in it.
#
# Parquet stores values that repeat as a dictionary. The filter that Spark pushes down compares 0.0
# with the entries of the dictionary by their bits, finds no equal one, and skips the row group. In
# SQL the two are equal: without the pushdown, and in a file whose values differ, the rows are found.
# It needs Java 17.
#
# Seen on 2026-11-29:
#   pyspark 4.2.0
#   values repeat: 0 of 1000 rows
#   values repeat, no pushdown: 1000 of 1000 rows
#   values differ: 1 of 1 rows
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check pyspark==4.2.0
cd "$work"
PYSPARK_PYTHON="$work/venv/bin/python" "$work/venv/bin/python" - <<'PY' 2>"$work/stderr" || { cat "$work/stderr"; exit 1; }
import pyspark
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
minus_zero = "CAST('-0.0' AS DOUBLE)"
repeated = f"IF(id < 1000, {minus_zero}, 1.0D) AS x"
spark.range(0, 2000, 1, 1).selectExpr(repeated).write.parquet("repeated")
distinct = f"IF(id = 0, {minus_zero}, id + 0.5D) AS x"
spark.range(0, 2000, 1, 1).selectExpr(distinct).write.parquet("distinct")


def found(directory: str, *, pushdown: bool) -> int:
    spark.conf.set("spark.sql.parquet.filterPushdown", str(pushdown).lower())
    return spark.read.parquet(directory).where("x = 0.0D").count()


counts = found("repeated", pushdown=True), found("repeated", pushdown=False)
other = found("distinct", pushdown=True)
print("pyspark", pyspark.__version__)
print(f"values repeat: {counts[0]} of 1000 rows")
print(f"values repeat, no pushdown: {counts[1]} of 1000 rows")
print(f"values differ: {other} of 1 rows")
changed = (*counts, other) != (0, 1000, 1)
print("DIFFERENT" if changed else "as described")
raise SystemExit(changed)
PY
