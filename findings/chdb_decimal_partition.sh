#!/usr/bin/env bash
# chdb 4.4.0 (ClickHouse 26.9) reads other values from a Delta partition column of a wide decimal.
#
# Partition values are texts of the log. Of a column DECIMAL(38,10), `-12345678901234567890.5` comes
# back as another number, without an error; in a data file the same value is right. A value with few
# digits is right, too.
#
# Seen on 2026-11-28:
#   chdb 4.4.0 | in files: -12345678901234567890.5000000000 | as partition value: -0.6692605943
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
  chdb==4.4.0 deltalake==1.6.6 pyarrow==26.0.1 pandas==2.3.3
cd "$work"
"$work/venv/bin/python" - <<'PY'
import importlib.metadata
import json
import os
from decimal import Decimal
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq

VALUE = Decimal("-12345678901234567890.5")
rows = pa.table({"id": [1], "c": pa.array([VALUE], pa.decimal128(38, 10))})
deltalake.write_deltalake("files", rows)
# The log of a partitioned table by hand: deltalake itself misspells negative decimals in it.
os.makedirs("parts/_delta_log")
pq.write_table(rows.select(["id"]), "parts/f.parquet")
fields = [
    {"name": name, "type": kind, "nullable": True, "metadata": {}}
    for name, kind in (("id", "long"), ("c", "decimal(38,10)"))
]
metadata = {"id": "0", "format": {"provider": "parquet", "options": {}}, "configuration": {}}
metadata |= {"schemaString": json.dumps({"type": "struct", "fields": fields}), "partitionColumns": ["c"]}
add = {"path": "f.parquet", "partitionValues": {"c": f"{VALUE:.10f}"}, "modificationTime": 0}
add |= {"size": os.path.getsize("parts/f.parquet"), "dataChange": True}
actions = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": metadata}, {"add": add}]
Path("parts/_delta_log/00000000000000000000.json").write_text("\n".join(map(json.dumps, actions)))

here = os.getcwd()
os.chdir("/")  # chdb reads files below its directory alone
import chdb

read = lambda table: chdb.query(f"SELECT c FROM deltaLakeLocal('{here}/{table}')", "ArrowTable")["c"][0].as_py()
in_files, in_parts = read("files"), read("parts")
print("chdb", importlib.metadata.version("chdb"))
print("in files:", in_files)
print("as partition value:", in_parts)
changed = in_files != VALUE or in_parts == VALUE
print("DIFFERENT" if changed else "as described")
raise SystemExit(changed)
PY
