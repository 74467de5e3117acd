#!/usr/bin/env bash
# daft 0.7.26 cannot read a Delta table with a column of texts that polars 2.1.0 wrote.
#
# The Arrow schema in the footer of the file has the type `string_view`, which daft does not know.
# Bytes (`binary_view`) are refused in the same way; numbers are read.
#
# Seen on 2026-11-29:
#   type in the footer: string_view
#   daft, texts: DaftCoreException: DaftError::ValueError Unsupported Arrow DataType: Utf8View
#   daft, numbers: {'v': [1]}
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
  daft==0.7.26 deltalake==1.6.6 pyarrow==25.0.1 polars==2.1.0
cd "$work"
"$work/venv/bin/python" - <<'PY' 2>"$work/stderr" || { cat "$work/stderr"; exit 1; }
from pathlib import Path

import daft
import polars as pl
import pyarrow.parquet as pq


def read(place: str) -> str:
    try:
        return str(daft.read_deltalake(place).to_pydict())
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


pl.DataFrame({"v": ["a"]}).write_delta("texts")
pl.DataFrame({"v": [1]}).write_delta("numbers")
print("daft", daft.__version__, "polars", pl.__version__)
kind = str(pq.read_schema(next(Path("texts").glob("*.parquet"))).field("v").type)
print("type in the footer:", kind)
texts, numbers = read("texts"), read("numbers")
print("daft, texts:", texts)
print("daft, numbers:", numbers)
changed = kind != "string_view" or "Utf8View" not in texts or numbers != "{'v': [1]}"
print("DIFFERENT" if changed else "as described")
raise SystemExit(changed)
PY
