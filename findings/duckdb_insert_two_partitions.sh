#!/usr/bin/env bash
# DuckDB 1.5.5 with its extension `delta` 1.5.5 refuses an INSERT of rows of two partitions of a Delta
# table with an internal error.
#
# Rows of one partition are inserted. The log of the table is as it was after the error.
#
# Seen on 2026-11-29:
#   rows of one partition: 2 rows
#   rows of two partitions: INTERNAL Error: DeltaInsert::Sink expects a single row containing output of
#     the PhysicalCopy that should be its Source
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
  duckdb==1.5.5 duckdb-extension-delta==1.5.5 deltalake==1.6.6 pyarrow==26.0.1
cd "$work"
"$work/venv/bin/python" - <<'PY' 2>"$work/stderr" || { cat "$work/stderr"; exit 1; }
import sysconfig
from pathlib import Path

import deltalake
import duckdb
import pyarrow as pa

extension = next(Path(sysconfig.get_path("purelib"), "duckdb_extension_delta").rglob("*.duckdb_extension"))
deltalake.write_deltalake("t", pa.table({"id": [1], "c": ["a"]}), partition_by=["c"])


def insert(values: str) -> str:
    connection = duckdb.connect()
    connection.execute(f"LOAD '{extension}'")
    connection.execute("ATTACH 't' AS target (TYPE delta)")
    try:
        connection.execute(f"INSERT INTO target VALUES {values}")
    except Exception as error:
        return str(error).splitlines()[0]
    return f"{len(connection.execute('FROM target').fetchall())} rows"


print("duckdb", duckdb.__version__)
one, two = insert("(2, 'b')"), insert("(3, 'c'), (4, 'd')")
print("rows of one partition:", one)
print("rows of two partitions:", two)
changed = one != "2 rows" or "DeltaInsert::Sink" not in two
print("DIFFERENT" if changed else "as described")
raise SystemExit(changed)
PY
