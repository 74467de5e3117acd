"""Spark SQL expressions: parsed, typed, and evaluated over Arrow by its kernels or by DuckDB.

A text becomes values in five steps:

| Step | Modules | Result |
|---|---|---|
| text → tokens | `tokens` | lexemes of Spark's grammar |
| tokens → syntax | `parser`, `literals` | a tree with Spark's precedences |
| syntax → typed | `analysis`, `types`, `casts`, `functions` | a tree of `typed`: explicit casts |
| typed → files | `skipping`, `generated_filters` | files whose bounds rule out every row |
| typed → values | `evaluator`, `duckdb_sql` | Arrow arrays, by kernels or by DuckDB |

`expressions` takes these steps for a caller. `filters` are the conditions of statements,
`table_expressions` the untrusted SQL of a table's metadata, and `constraint` is what written rows
must satisfy. `conditions` builds typed conditions without a text. `text_values` reads one text as a
value as Spark's CAST does, `text_columns` a column of them. `time_zone` is that of a statement.

Tested by `tests/sql`.
"""

from __future__ import annotations
