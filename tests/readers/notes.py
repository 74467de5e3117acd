"""What the answers mean, in words: written by hand, and held by a test to the cells.

The first note that fits a table and a program is said. `*` stands for any text.
"""

from __future__ import annotations

from dagster_delta.evolution.programs import Note

INSTEAD = {
    "CHAR and VARCHAR": "declare STRING, with a CHECK on its length",
    "VACUUM protocol check": '`drop_feature("vacuumProtocolCheck")`',
    "V2 checkpoint": "leave `delta.checkpointPolicy` at `classic`",
    "checkpoint protection": "`drop_feature(…, truncate_history=True)`, which deletes older versions",
    "append to two partitions": "in DuckDB, an INSERT for each partition",
    "column added later": "filter after the scan, or use `QueryBuilder`",
    "column mapping, partitioned": "for DuckDB, partition by one column, the first of the table; "
    "`QueryBuilder` of deltalake reads the rows",
    "column mapping*": "add a column under the new name in place of a rename; "
    '`drop_feature("columnMapping")` rewrites the files under the names of the columns; '
    "`QueryBuilder` of deltalake reads the rows",
    "default for existing rows": '`existing_rows="rewrite"`, or `materialize_defaults()`',
    "deletion vectors": "leave `delta.enableDeletionVectors` off; "
    '`drop_feature("deletionVectors")` rewrites the files without their deleted rows',
    "in-commit timestamps*": "ask for versions",
    "column dropped and added again": "add it under a name that no column had",
    "column dropped before another": "call `reorg()` after the change, which writes files without "
    "the column",
    "partitioned by timestamp*": "partition by a DATE column, such as one generated from the time",
    "shallow clone": "`clone(deep=True)`",
    "timestamp_ntz": "TIMESTAMP columns",
    "type widening*": '`drop_feature("typeWidening")`',
    "widened: *": '`drop_feature("typeWidening")` rewrites the older files with the wider type',
}
"""What to do in place of what leads to such a table, or to leave it."""


def _read(tables: str, programs: str, text: str, reason: str) -> Note:
    return Note(tables=tables, program=programs, is_append=False, text=text, reason=reason)


def _append(tables: str, programs: str, text: str, reason: str) -> Note:
    return Note(tables=tables, program=programs, is_append=True, text=text, reason=reason)


_PHYSICAL = "the protocol demands physical names in the files, and it looks for those of the schema"
_OLD_FILES = "older files keep their type until they are rewritten"
_NO_NAN = (
    "any other largest value hides the rows from `= NaN` in delta-spark, DuckDB, daft, Sail and "
    "`QueryBuilder`"
)
_ROW_COUNT = "the log has the rows of a file, and the deleted ones apart, as the protocol demands"
_SPELLED = "the writer spells its partition values"
_NO_ZONE = "the only type that ClickHouse has for them takes the zone of the session"

NOTES = (
    _read(
        "CHAR and VARCHAR",
        "*",
        "texts come without the spaces that fill CHAR up to its length",
        "delta-spark stores them without spaces: with spaces in our files, one value would have "
        "two texts",
    ),
    _read(
        "minus zero",
        "*",
        "`= 0.0` and `>= 0.0` do not find -0.0",
        "it orders -0.0 before 0.0, whatever the file says",
    ),
    _read(
        "partitioned by minus zero",
        "*",
        "`= 0.0` and `>= 0.0` do not find the partition of -0.0",
        "the sign is part of the value, and delta-spark writes `-0.0`, too",
    ),
    _read(
        "NaN*", "deltalake", "filters skip files with NaN, and `x < 2` returns all of one", _NO_NAN
    ),
    _read("NaN*", "chdb", "`x > 5` does not find NaN", "no comparison with NaN is true there"),
    _read(
        "in-commit timestamps on a copied log*",
        "*",
        "times are those of the files of the log, which a copy changes",
        "a file has no time of its own that a copy keeps",
    ),
    _read(
        "column added later",
        "deltalake",
        "filters with IS NULL skip files without the column",
        "the statistics of older files cannot name a column that came later",
    ),
    _read(
        "long strings",
        "deltalake",
        "filters skip a file whose text has no upper bound",
        "no short text sorts after one of the greatest characters",
    ),
    _read(
        "column mapping, partitioned",
        "DuckDB",
        "partition columns are NULL, or have the values of another one; not if the first column of "
        "the table is the only partition column, or has its own name in the files",
        "the protocol gives the column another name in the log; delta-spark's tables read so, too",
    ),
    _read(
        "column mapping that came with a rename",
        "deltalake",
        "`to_pyarrow_table` gives null in renamed columns",
        _PHYSICAL,
    ),
    _read(
        "column dropped and added again",
        "deltalake",
        "`to_pyarrow_table` gives the values of the dropped column",
        _PHYSICAL,
    ),
    *(
        _read(tables, "deltalake", "`to_pyarrow_table` gives null in every column", _PHYSICAL)
        for tables in (
            "column c.d*",
            "names with *",
            "column dropped before another",
            "column mapping*",
            "*column mapping",
            "*renamed column",
        )
    ),
    _read(
        "column mapping with a list*",
        "daft",
        "every list is NULL",
        "daft looks for ids of elements, which the protocol does not give; with ids in the files "
        "it is the same",
    ),
    _read(
        "column mapping with a list of structs",
        "chdb",
        "every list is empty",
        "it is the same with ids of elements in the files",
    ),
    _read(
        "column c.d*",
        "chdb",
        "the field of the struct is NULL",
        "the files have another name for each of the two",
    ),
    _read(
        "*deletion vectors*",
        "chdb",
        "`count()` counts deleted rows; `count(column)` is right",
        _ROW_COUNT,
    ),
    _read("mapping, vectors and wider types", "chdb", "`count()` counts deleted rows", _ROW_COUNT),
    _read(
        "partitioned by decimal",
        "chdb",
        "decimals of more than 18 digits have wrong values",
        "it is the same for every spelling of the value that chdb takes",
    ),
    _read(
        "*timestamp_ntz",
        "chdb",
        "local times come as times of the session's time zone",
        _NO_ZONE,
    ),
    _read(
        "checkpoint with *",
        "chdb",
        "local times come as times of the session's time zone",
        _NO_ZONE,
    ),
    _read(
        "*",
        "chdb",
        "a NULL struct comes as a struct of NULLs, a NULL list or map as an empty one",
        "structs, lists and maps have no NULL in ClickHouse",
    ),
    _read(
        "widened: *",
        "DuckDB",
        "a constant in a filter is rounded to the type of the older files: rows near it are lost "
        "or added",
        _OLD_FILES,
    ),
    _read(
        "widened: date to timestamp_ntz",
        "daft",
        "a constant in a filter is rounded to the type of the older files",
        _OLD_FILES,
    ),
    _read(
        "change data feed*",
        "Sail",
        "`readChangeFeed` is ignored: rows come in place of changes",
        "Sail has no reader of the feed",
    ),
    _append(
        "row against a CHECK",
        "daft",
        "rows that break the constraint are stored",
        "the protocol of the table demands the check, and daft does not make it",
    ),
    _append(
        "column mapping*",
        "daft",
        "every value of its rows is NULL, for every reader, and daft refuses the table from then on",
        "it writes the names of the schema, whatever the protocol of the table demands",
    ),
    _append(
        "column mapping in a list of features",
        "DuckDB",
        "every value of its rows is NULL, for every reader: it writes the names of the schema in "
        "place of the physical ones. A protocol has a list of features as soon as one of them is "
        "newer than column mapping, such as TIMESTAMP_NTZ, deletion vectors, row tracking or "
        "in-commit timestamps",
        "such features need a protocol with a list",
    ),
    _append(
        "timestamp_ntz",
        "chdb",
        "its files have instants in place of local times: Java Kernel refuses the table from then on",
        _NO_ZONE,
    ),
    _append(
        "plain",
        "polars",
        "daft refuses the table as soon as a file of polars has texts or bytes, which polars writes "
        "as views",
        "polars chooses the types in its files",
    ),
    _append(
        "files of infinity alone",
        "daft",
        "`QueryBuilder` of deltalake and Sail refuse the table from then on: the statistics of such "
        "a file say `Infinity`, which is not JSON. `optimize()` rewrites small files",
        "daft writes its statistics",
    ),
    _append(
        "partitioned by timestamp",
        "daft",
        "Java Kernel and polars refuse the table from then on: they do not read the partition "
        "value, such as `2024-01-01 12:00:00 +00:00`",
        _SPELLED,
    ),
    *(
        _append(
            "partitioned by timestamp",
            program,
            "polars refuses the table from then on: it takes one spelling of instants for all "
            "partition values, and deltalake has another than Delta's ISO 8601",
            _SPELLED,
        )
        for program in ("deltalake", "polars")
    ),
    *(
        _append(
            "checkpoint with *",
            program,
            "as in other tables that are partitioned by timestamps, not every program reads the "
            "table from then on",
            _SPELLED,
        )
        for program in ("daft", "deltalake", "polars")
    ),
    _append(
        "*",
        "DuckDB",
        "if a partition value has a space or another character that paths encode, the log names "
        "files that are not there: no reader opens the table until it is restored to the version "
        "before",
        "DuckDB chooses the names of its files",
    ),
    _append(
        "partitioned by binary",
        "*",
        "bytes below 32 are stored as other ones",
        _SPELLED,
    ),
)
