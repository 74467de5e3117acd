#!/usr/bin/env bash
# Spark 4.2.0 does not find -0.0 by `f = 0.0` in a Parquet file that has a Bloom filter for `f`.
#
# In Spark SQL the two are equal, and without a Bloom filter, or with
# `spark.sql.parquet.filterPushdown` off, the row is found. Spark itself writes the filter, by the
# option `parquet.bloom.filter.enabled`; it asks the filter for the bits of 0.0 alone, and the row
# group is skipped without an error. It needs Java 17.
#
# Seen on 2026-11-28:
#   pyspark 4.2.0 | no filter: [-0.0] | filter: [] | filter, no pushdown: [-0.0]
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check pyspark==4.2.0
cd "$work"
PYSPARK_PYTHON="$work/venv/bin/python" "$work/venv/bin/python" - <<'PY' 2>"$work/stderr" || { cat "$work/stderr"; exit 1; }
import pyspark
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.getOrCreate()
rows = spark.sql("SELECT CAST('-0.0' AS DOUBLE) AS f UNION ALL SELECT 1.5D").coalesce(1)
rows.write.parquet("plain")
rows.write.option("parquet.bloom.filter.enabled", "true").parquet("filtered")


def found(directory: str, *, pushdown: bool) -> list[float]:
    spark.conf.set("spark.sql.parquet.filterPushdown", str(pushdown).lower())
    return [row.f for row in spark.read.parquet(directory).where("f = 0.0D").collect()]


plain, filtered = found("plain", pushdown=True), found("filtered", pushdown=True)
without_pushdown = found("filtered", pushdown=False)
print("pyspark", pyspark.__version__)
print("no filter:", plain)
print("filter:", filtered)
print("filter, no pushdown:", without_pushdown)
changed = len(plain) != 1 or len(without_pushdown) != 1 or filtered != []
print("DIFFERENT" if changed else "as described")
raise SystemExit(changed)
PY
