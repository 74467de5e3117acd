#!/usr/bin/env bash
# pysail 0.7.2 gives a column that only the right side of `unionByName(…, allowMissingColumns=True)`
# has the type void: `toArrow` fails, and a field of a struct is not found.
#
# Spark gives it the type of the right side. With the sides
# exchanged, Sail does so, too.
#
# Seen on 2026-11-29:
#   pysail 0.7.2
#   the left lacks w: void, toArrow fails, w.a fails
#   the right lacks w: struct<a:int>, toArrow works, w.a works
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
  pysail==0.7.2 'pyspark[connect]==4.2.0' pyarrow==26.0.1 pandas==2.3.3
cd "$work"
"$work/venv/bin/python" - 2>/dev/null <<'PY'
import importlib.metadata

from pysail.spark import SparkConnectServer
from pyspark.sql import DataFrame, SparkSession

server = SparkConnectServer()
server.start(background=True)
session = SparkSession.builder.remote(f"sc://localhost:{server.listening_address[1]}").getOrCreate()
without = session.sql("SELECT 1 AS k")
with_struct = session.sql("SELECT 2 AS k, named_struct('a', 3) AS w")


def described(frame: DataFrame) -> str:
    uses = {"toArrow": frame.toArrow, "w.a": lambda: frame.select("w.a").collect()}
    said = [frame.schema["w"].dataType.simpleString()]
    for name, use in uses.items():
        try:
            use()
        except Exception:
            said.append(f"{name} fails")
        else:
            said.append(f"{name} works")
    return ", ".join(said)


found = [
    described(without.unionByName(with_struct, allowMissingColumns=True)),
    described(with_struct.unionByName(without, allowMissingColumns=True)),
]
print("pysail", importlib.metadata.version("pysail"))
print("the left lacks w:", found[0])
print("the right lacks w:", found[1])
expected = ["void, toArrow fails, w.a fails", "struct<a:int>, toArrow works, w.a works"]
changed = found != expected
print("DIFFERENT" if changed else "as described", flush=True)
raise SystemExit(changed)
PY
