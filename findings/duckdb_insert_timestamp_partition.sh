#!/usr/bin/env bash
# DuckDB 1.5.5 with its extension `delta` 1.5.5 inserts into a Delta table that is partitioned by a
# timestamp, and commits what other readers cannot read.
#
# The directory on disk has escaped characters in its name (`%20`, `%3A`), and `add.path` has the same
# text. A path of the log is a URI, which readers decode once, so that the decoded name does not
# exist. The partition value is `2024-01-02 00:00:00+00`, which deltalake 1.6.6 (delta-kernel) does
# not parse: it cannot read any row of the table from then on.
#
# Seen on 2026-11-28:
#   on disk: ['c=2024-01-02%2000%3A00%3A00%2B00/duckdb_….parquet']
#   in the log: c=2024-01-02%2000%3A00%3A00%2B00/duckdb_….parquet
#   deltalake reads: DeltaError: Kernel error: Failed to parse value '2024-01-02 00:00:00+00' as 'timestamp'
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
  duckdb==1.5.5 duckdb-extension-delta==1.5.5 deltalake==1.6.6 pyarrow==26.0.1 pytz==2026.6
cd "$work"
"$work/venv/bin/python" - <<'PY'
import datetime as dt
import json
import sysconfig
from pathlib import Path
from urllib.parse import unquote

import deltalake
import duckdb
import pyarrow as pa

first = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
rows = pa.table({"id": [1], "c": pa.array([first], pa.timestamp("us", "UTC"))})
deltalake.write_deltalake("t", rows, partition_by=["c"])

connection = duckdb.connect()
extension = next(Path(sysconfig.get_path("purelib"), "duckdb_extension_delta").rglob("*.duckdb_extension"))
connection.execute(f"LOAD '{extension}'")
connection.execute("SET TimeZone = 'UTC'")
connection.execute("ATTACH 't' AS target (TYPE delta)")
connection.execute("INSERT INTO target VALUES (2, TIMESTAMPTZ '2024-01-02 00:00:00+00')")

actions = map(json.loads, Path("t/_delta_log/00000000000000000001.json").read_text().splitlines())
path = next(action["add"]["path"] for action in actions if "add" in action)
on_disk = [file.relative_to("t").as_posix() for file in Path("t").rglob("duckdb*")]
print("duckdb", duckdb.__version__)
print("on disk:", on_disk)
print("in the log:", path)
try:
    count = deltalake.DeltaTable("t").to_pyarrow_table().num_rows
except Exception as error:
    count = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
print("deltalake reads:", count)
changed = unquote(path) in on_disk or isinstance(count, int)
print("DIFFERENT: the path of the log is that of the file" if changed else "as described")
raise SystemExit(changed)
PY
