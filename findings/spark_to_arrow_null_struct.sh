#!/usr/bin/env bash
# `DataFrame.toArrow` of pyspark 4.2.0 raises ArrowInvalid where a nullable struct is null and has a
# field that is not nullable, as the structs of `IF(…, named_struct(…), NULL)` and of outer joins have.
#
# It casts what it received to the Arrow schema of the frame, to the very same type, and the cast of
# pyarrow 26.0.1 refuses nulls below which a field may not be null. `collect` gives both rows, and so
# does `toArrow` of the frame with every field made nullable by `DataFrame.to`. It needs Java 17.
#
# Seen on 2026-11-29, and the same with Spark Connect:
#   pyspark 4.2.0
#   collect: [Row(s=Row(a=Row(b=1))), Row(s=None)]
#   toArrow: ArrowInvalid: Can't view array of type struct<a: struct<b: int32 not null> not null> as
#   toArrow, nullable: [{'a': {'b': 1}}, None]
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check pyspark==4.2.0 pyarrow==26.0.1
cd "$work"
PYSPARK_PYTHON="$work/venv/bin/python" "$work/venv/bin/python" - <<'PY' 2>"$work/stderr" || { cat "$work/stderr"; exit 1; }
import pyspark
from pyspark.sql import DataFrame, SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
session = builder.getOrCreate()
frame = session.sql(
    "SELECT IF(id = 0, named_struct('a', named_struct('b', 1)), NULL) AS s FROM range(2)"
)


def as_arrow(rows: DataFrame) -> object:
    try:
        return rows.toArrow()["s"].to_pylist()
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:80]}"


print("pyspark", pyspark.__version__)
print("collect:", frame.collect())
refused = as_arrow(frame)
print("toArrow:", refused)
nullable = session.createDataFrame([], "s STRUCT<a: STRUCT<b: INT>>").schema
read = as_arrow(frame.to(nullable))
print("toArrow, nullable:", read)
changed = "ArrowInvalid" not in str(refused) or read != [{"a": {"b": 1}}, None]
print("DIFFERENT" if changed else "as described")
raise SystemExit(changed)
PY
