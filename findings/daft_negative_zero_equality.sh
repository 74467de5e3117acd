#!/usr/bin/env bash
# daft 0.7.26 does not find -0.0 by `== 0.0`, nor 0.0 by `== -0.0`, in Delta tables and elsewhere.
#
# Its filters order -0.0 before 0.0, so that `x >= 0.0` leaves out rows as well. By IEEE 754, in SQL
# and for other readers of Delta tables the two are equal.
#
# Seen on 2026-11-28:
#   daft 0.7.26 | x == 0.0: [1] | x >= 0.0: [1] | deltalake 1.6.6, x = 0.0: [0, 1]
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
  daft==0.7.26 deltalake==1.6.6 pyarrow==25.0.1
cd "$work"
"$work/venv/bin/python" - <<'PY'
import daft
import deltalake
import pyarrow as pa

deltalake.write_deltalake("table", pa.table({"id": [0, 1], "x": [-0.0, 0.0]}))
frame = daft.read_deltalake("table")
ids = lambda condition: sorted(frame.where(condition).to_pydict()["id"])
equal = ids(daft.col("x") == 0.0)
at_least = ids(daft.col("x") >= 0.0)
query = "SELECT id FROM t WHERE x = 0.0"
found = deltalake.QueryBuilder().register("t", deltalake.DeltaTable("table")).execute(query)
others = sorted(pa.table(found.read_all())["id"].to_pylist())
print(
    f"daft {daft.__version__} | x == 0.0: {equal} | x >= 0.0: {at_least} | "
    f"deltalake {deltalake.__version__}, x = 0.0: {others}"
)
assert (equal, at_least, others) == ([1], [1], [0, 1])
PY
