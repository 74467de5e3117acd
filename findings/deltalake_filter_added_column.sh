#!/usr/bin/env bash
# deltalake 1.6.6: a filter of `to_pyarrow_dataset` finds no row of files that are older than the
# column, whatever the filter says of NULL.
#
# The log has no bounds and no count of nulls for a column that a file does not have. deltalake gives
# pyarrow the statistics of each file as an expression, so pyarrow skips such a file for every filter
# on the column: `IS NULL`, and the negation of `IS NOT NULL`, lose its rows without an error. The
# same rows are there without a filter, and in deltalake's own QueryBuilder.
#
# Seen on 2026-11-29:
#   no filter: [(1, None), (2, None), (3, 7)]
#   x IS NULL, pyarrow: []
#   NOT (x IS NOT NULL), pyarrow: []
#   x IS NULL, QueryBuilder: [(1, None), (2, None)]
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check deltalake==1.6.6 pyarrow==26.0.1
cd "$work"
"$work/venv/bin/python" - <<'PY'
import deltalake
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder, write_deltalake

write_deltalake("t", pa.table({"id": [1, 2]}))
write_deltalake("t", pa.table({"id": [3], "x": [7]}), mode="append", schema_mode="merge")
table = DeltaTable("t")
dataset = table.to_pyarrow_dataset()


def rows(found):
    read = pa.table(found).to_pydict()
    return sorted(zip(read["id"], read["x"]))


is_null = rows(dataset.to_table(filter=pc.field("x").is_null()))
is_not_valid = rows(dataset.to_table(filter=~pc.field("x").is_valid()))
query = QueryBuilder().register("t", table).execute("SELECT id, x FROM t WHERE x IS NULL")
by_query = rows(query.read_all() if hasattr(query, "read_all") else query)
print("deltalake", deltalake.__version__, "pyarrow", pa.__version__)
print("no filter:", rows(dataset.to_table()))
print("x IS NULL, pyarrow:", is_null)
print("NOT (x IS NOT NULL), pyarrow:", is_not_valid)
print("x IS NULL, QueryBuilder:", by_query)
changed = is_null != [] or is_not_valid != [] or by_query != [(1, None), (2, None)]
print("DIFFERENT: the older rows are found" if changed else "as described")
raise SystemExit(changed)
PY
