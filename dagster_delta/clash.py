"""Detect another project that installs the same import package, `dagster_delta`, and explain it.

The distribution `dagster-delta` on PyPI belongs to another project. If both are installed in one
environment, they overwrite each other's files: the files of the last one installed remain, and
imports fail in odd ways.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

OTHER_DISTRIBUTION = "dagster-delta"
OUR_DISTRIBUTION = "dagster-delta-protocol"

_BUILT_IN = "none: pandas, polars, pyarrow and pyspark are built in, and a TypeHandler adds a type"
_PROPERTY = (
    "a table property, in table_configuration of an asset or properties of DeltaTable.create"
)
_A_CLAUSE = "the plain mapping of its fields"

_REPLACEMENTS = {
    "BackoffConfig": "none: the retries of requests are fixed",
    "ClientConfig": "none: the timeouts and retries of requests are fixed",
    "SchemaMode": 'a plain string, as in schema_mode="merge"',
    "BloomFilterProperties": "none: no bloom filters are written",
    "ColumnProperties": _PROPERTY,
    "CommitProperties": "commit_info={…} of a call, or the metadata custom_metadata of an asset",
    "DeltaMergeBuilder": "DeltaTable.merge(…)",
    "Field": "Column",
    "Metadata": "DeltaTable.metadata()",
    "PostCommitHookProperties": "none: checkpoints and clean-ups follow the table properties",
    "QueryBuilder": "scan.to_duckdb(connection), or delta_sql_asset",
    "Schema": "a list of Column, or a pyarrow.Schema",
    "TableAlterer": "DeltaTable.alter(…)",
    "TableMerger": "DeltaTable.merge(…)",
    "TableOptimizer": "DeltaTable.optimize(…)",
    "WhenMatchedDelete": _A_CLAUSE,
    "WhenMatchedUpdate": _A_CLAUSE,
    "WhenMatchedUpdateAll": _A_CLAUSE,
    "WhenNotMatchedBySourceDelete": _A_CLAUSE,
    "WhenNotMatchedBySourceUpdate": _A_CLAUSE,
    "WhenNotMatchedInsert": _A_CLAUSE,
    "WhenNotMatchedInsertAll": _A_CLAUSE,
    "WriterProperties": _PROPERTY,
    "WriteMode": 'a plain string, as in mode="append"',
    "WriterEngine": "none: the type of the returned value selects the engine",
    "BaseDeltaLakeIOManager": "DeltaIOManager",
    "DeltaLakeIOManager": "DeltaIOManager",
    "DeltaLakePandasIOManager": 'DeltaIOManager(default_load_type="pandas")',
    "DeltaLakePolarsIOManager": 'DeltaIOManager(default_load_type="polars")',
    "DeltaLakePyarrowIOManager": 'DeltaIOManager(default_load_type="pyarrow")',
    "PolarsDeltaIOManager": 'DeltaIOManager(default_load_type="polars")',
    "DeltaWriteMode": 'a plain string, as in mode="append"',
    "DeltaLakePandasTypeHandler": _BUILT_IN,
    "DeltaLakePolarsTypeHandler": _BUILT_IN,
    "DeltaLakePyArrowTypeHandler": _BUILT_IN,
    "DeltalakeBaseArrowTypeHandler": _BUILT_IN,
    "LazyPySparkResource": "SparkSessionResource",
    "PySparkResource": "SparkSessionResource",
    "write_deltalake": "DeltaTable(uri, must_exist=False).append(data) or overwrite(data)",
    "AzureConfig": "AzureStorageOptions",
    "GcsConfig": "GcsStorageOptions",
    "LocalConfig": "LocalStorageOptions",
    "S3Config": "S3StorageOptions",
}
"""For public names of the projects that users move over from: what to use instead."""


@cache
def clash_explanation() -> str | None:
    """What to do if the other project is also installed, or None if it is not installed."""
    try:
        other = version(OTHER_DISTRIBUTION)
    except PackageNotFoundError:
        return None
    return (
        f"the distribution {OTHER_DISTRIBUTION} {other} is installed too, and it is another "
        f"project with the same import package dagster_delta, so the files of the two are mixed; "
        f"keep one of them: pip uninstall {OTHER_DISTRIBUTION} {OUR_DISTRIBUTION}, then install "
        "the one you want"
    )


def missing_name(name: str) -> AttributeError | ImportError:
    """The error for a name that `dagster_delta` does not have.

    Returns:
        An ImportError for a name of a project that users move over from, because `from
        dagster_delta import …` hides the message of an AttributeError.
    """
    message = f"module 'dagster_delta' has no attribute {name!r}"
    if name in _REPLACEMENTS:
        message += (
            f"; its counterpart here is {_REPLACEMENTS[name]}, see docs/migration.md. This is "
            f"{OUR_DISTRIBUTION}; the distribution {OTHER_DISTRIBUTION} is another project with "
            "the same import package"
        )
    if explanation := clash_explanation():
        message += f". Note that {explanation}"
    if name in _REPLACEMENTS:
        return ImportError(message, name="dagster_delta")
    return AttributeError(message)
