"""What the answers mean, in words: written by hand, and held by a test to the cells.

The first note that fits a table and a program is said. `*` stands for any text.
"""

from __future__ import annotations

from dagster_delta.evolution.programs import Note

INSTEAD = {
    "CHAR and VARCHAR": "declare STRING, with a CHECK on its length",
    "VACUUM protocol check": '`drop_feature("vacuumProtocolCheck")`',
    "V2 checkpoint": "leave `delta.checkpointPolicy` at `classic`",
    "column added later": "filter after the scan, or use `QueryBuilder`",
    "column mapping*": "add a column under the new name in place of a rename; "
    '`drop_feature("columnMapping")` rewrites the files under the names of the columns',
    "default for existing rows": '`existing_rows="rewrite"`, or `materialize_defaults()`',
    "deletion vectors": "leave `delta.enableDeletionVectors` off; "
    '`drop_feature("deletionVectors")` rewrites the files without their deleted rows',
    "in-commit timestamps*": "ask for versions",
    "shallow clone": "`clone(deep=True)`",
    "timestamp_ntz": "TIMESTAMP columns",
    "type widening*": '`drop_feature("typeWidening")`',
    "widened: *": '`drop_feature("typeWidening")` rewrites the older files with the wider type',
}
"""What to do in place of what leads to such a table, or to leave it."""


def _read(tables: str, programs: str, text: str) -> Note:
    return Note(tables=tables, program=programs, is_append=False, text=text)


def _append(tables: str, programs: str, text: str) -> Note:
    return Note(tables=tables, program=programs, is_append=True, text=text)


NOTES = (
    _read("CHAR and VARCHAR", "*", "texts come without the spaces that fill CHAR up to its length"),
    _read("*minus zero", "*", "`= 0.0` does not find -0.0"),
    _read("NaN*", "deltalake", "filters skip files with NaN, which have no largest value"),
    _read("NaN*", "chdb", "`x > 5` does not find NaN"),
    _read(
        "in-commit timestamps on a copied log*",
        "*",
        "times are those of the files of the log, which a copy changes",
    ),
    _read("column added later", "deltalake", "filters with IS NULL skip files without the column"),
    _read("long strings", "deltalake", "filters skip a file whose text has no upper bound"),
    _read(
        "column mapping that came with a rename",
        "deltalake",
        "`to_pyarrow_table` gives null in renamed columns",
    ),
    _read("column c.d*", "deltalake", "`to_pyarrow_table` gives null in every column"),
    _read("names with *", "deltalake", "`to_pyarrow_table` gives null in every column"),
    _read("column mapping*", "deltalake", "`to_pyarrow_table` gives null in every column"),
    _read("*column mapping", "deltalake", "`to_pyarrow_table` gives null in every column"),
    _read("column c.d*", "chdb", "the field of the struct is NULL"),
    _read("*deletion vectors*", "chdb", "`count()` counts deleted rows; `count(column)` is right"),
    _read("mapping, vectors and wider types", "chdb", "`count()` counts deleted rows"),
    _read("partitioned by decimal", "chdb", "wide decimals have wrong values"),
    _read("*timestamp_ntz", "chdb", "local times come as times of the session's time zone"),
    _read("checkpoint with *", "chdb", "local times come as times of the session's time zone"),
    _read("*", "chdb", "a NULL struct comes as a struct of NULLs, a NULL map as an empty one"),
    _read(
        "widened: *",
        "DuckDB",
        "a constant in a filter is rounded to the type of the older files: rows near it are lost "
        "or added",
    ),
    _read(
        "widened: date to timestamp_ntz",
        "daft",
        "a constant in a filter is rounded to the type of the older files",
    ),
    _read(
        "change data feed*", "Sail", "`readChangeFeed` is ignored: rows come in place of changes"
    ),
    _append("row against a CHECK", "daft", "rows that break the constraint are stored"),
    _append("column mapping*", "daft", "every value of its rows is NULL, for every reader"),
    _append(
        "column mapping beside deletion vectors",
        "DuckDB",
        "every value of its rows is NULL, for every reader: it writes the names of the schema in "
        "place of the physical ones, unless the protocol has a version without a list of features",
    ),
    _append(
        "*",
        "DuckDB",
        "the log names files that are not there: no reader opens the table until it is restored to "
        "the version before",
    ),
    _append("partitioned by binary", "*", "bytes below 32 are stored as other ones"),
)
