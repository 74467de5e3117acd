"""Write two tables below LAKE, as other tools would; one of them in many small files."""

import os

import pyarrow as pa

from dagster_delta import DeltaTable

LAKE = os.environ["LAKE"]

for number in range(5):
    rows = pa.table({"id": [number], "page": [f"/{number}"]})
    DeltaTable(f"{LAKE}/web/clicks", must_exist=False).append(rows)
DeltaTable(f"{LAKE}/web/pages", must_exist=False).overwrite(pa.table({"page": ["/0", "/1"]}))
