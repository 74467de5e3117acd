#!/usr/bin/env bash
# daft 0.7.26 appends a file with nothing but infinity in a column of floats to a Delta table, and
# writes statistics that are not JSON. Readers that parse them refuse the whole table from then on.
#
# The log has `"minValues": {"x": Infinity}`. The QueryBuilder of deltalake 1.6.6 and pysail 0.7.2
# cannot read any row then; delta-spark, DuckDB and daft itself do.
#
# Seen on 2026-11-29:
#   statistics: {"numRecords": 1, "minValues": {"x": Infinity}, "maxValues": {}, "nullCount": {"x": 0}}
#   deltalake, QueryBuilder: DeltaError: External error: Kernel error: Json error: Encountered unexpected 'I' whilst parsing value
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
  daft==0.7.26 deltalake==1.6.6 pyarrow==25.0.1 pyiceberg
cd "$work"
"$work/venv/bin/python" - <<'PY' 2>"$work/stderr" || { cat "$work/stderr"; exit 1; }
import json
from pathlib import Path

import daft
import deltalake
import pyarrow as pa

deltalake.write_deltalake("t", pa.table({"x": [1.0]}))
daft.from_pydict({"x": [float("inf")]}).write_deltalake("t", mode="append")
added = [json.loads(line) for line in Path("t/_delta_log/00000000000000000001.json").open()]
statistics = next(line["add"]["stats"] for line in added if "add" in line)
print("daft", daft.__version__, "deltalake", deltalake.__version__)
print("statistics:", statistics)
try:
    query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable("t"))
    said = str(pa.table(query.execute("SELECT * FROM t").read_all()).to_pylist())
except Exception as error:
    said = f"{type(error).__name__}: {str(error).splitlines()[0]}"
print("deltalake, QueryBuilder:", said)
changed = "Infinity" not in statistics or "Json error" not in said
print("DIFFERENT" if changed else "as described")
raise SystemExit(changed)
PY
