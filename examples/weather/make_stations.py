"""Write the table of the stations, as another team would."""

import pyarrow as pa
from defs import STATIONS

from dagster_delta import DeltaTable

DeltaTable(STATIONS, must_exist=False).overwrite(
    pa.table({"station": [1, 2], "name": ["Harbour", "Hill"]})
)
