#!/usr/bin/env bash
# pysail 0.7.2 ignores the option `readChangeFeed` of a Delta read: it returns the rows of the table,
# without `_change_type`, and without an error.
#
# delta-spark returns the changes. A job that moves from Spark to Sail and takes every row of the feed
# as an insert loses deletes and doubles updates in silence.
#
# Seen on 2026-11-28:
#   pysail 0.7.2 | columns: ['id', 'v'] | rows: 1 (the feed has an insert of two rows and a delete)
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
  pysail==0.7.2 'pyspark[connect]==4.2.0' deltalake==1.6.6 pyarrow==26.0.1 pandas==2.3.3
cd "$work"
"$work/venv/bin/python" - 2>/dev/null <<'PY'
import importlib.metadata

import deltalake
import pyarrow as pa
from pysail.spark import SparkConnectServer
from pyspark.sql import SparkSession

rows = pa.table({"id": [1, 2], "v": ["a", "b"]})
deltalake.write_deltalake("t", rows, configuration={"delta.enableChangeDataFeed": "true"})
deltalake.DeltaTable("t").delete("id = 2")
feed = pa.table(deltalake.DeltaTable("t").load_cdf(starting_version=0))
assert feed.num_rows == 3, feed

server = SparkConnectServer()
server.start(background=True)
session = SparkSession.builder.remote(f"sc://localhost:{server.listening_address[1]}").getOrCreate()
reader = session.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0)
found = reader.load("t").toArrow()
print("pysail", importlib.metadata.version("pysail"))
print("columns:", found.column_names)
print("rows:", found.num_rows, "of a feed of", feed.num_rows)
changed = found.num_rows == feed.num_rows or "_change_type" in found.column_names
print("DIFFERENT: the feed is read" if changed else "as described", flush=True)
raise SystemExit(changed)
PY
