#!/usr/bin/env bash
# daft 0.7.26 appends to a Delta table that is partitioned by a timestamp, and polars 2.1.0 cannot read
# the table from then on.
#
# A partition value of daft is `2024-01-01 12:00:00 +00:00`, which the protocol does not know: it has
# `2024-01-01 12:00:00` and ISO 8601. Delta Kernel for Java refuses it, too.
#
# Seen on 2026-11-29:
#   polars, before: 1 rows
#   partition value of daft: 2024-01-02 12:00:00 +00:00
#   polars, after: ComputeError: could not parse '2024-01-02 12:00:00 +00:00' with pattern 'DatetimeYMDZ'
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
  daft==0.7.26 deltalake==1.6.6 pyarrow==25.0.1 pyiceberg polars==2.1.0
cd "$work"
"$work/venv/bin/python" - <<'PY' 2>"$work/stderr" || { cat "$work/stderr"; exit 1; }
import datetime as dt
import json
from pathlib import Path

import daft
import deltalake
import polars as pl
import pyarrow as pa


def row(day: int) -> pa.Table:
    at = dt.datetime(2024, 1, day, 12, tzinfo=dt.UTC)
    return pa.table({"id": [day], "at": pa.array([at], pa.timestamp("us", "UTC"))})


def read() -> str:
    try:
        return f"{pl.read_delta('t').height} rows"
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


deltalake.write_deltalake("t", row(1), partition_by=["at"])
print("daft", daft.__version__, "polars", pl.__version__)
before = read()
print("polars, before:", before)
daft.from_arrow(row(2)).write_deltalake("t", mode="append")
added = [json.loads(line) for line in Path("t/_delta_log/00000000000000000001.json").open()]
value = next(line["add"]["partitionValues"]["at"] for line in added if "add" in line)
print("partition value of daft:", value)
after = read()
print("polars, after:", after)
changed = before != "1 rows" or not value.endswith("+00:00") or "could not parse" not in after
print("DIFFERENT" if changed else "as described")
raise SystemExit(changed)
PY
