"""Detect another project that installs the same import package, `dagster_delta`, and explain it.

The distribution `dagster-delta` on PyPI belongs to another project. If both are installed in one
environment, they overwrite each other's files: the files of the last one installed remain, and
imports fail in odd ways.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version

OTHER_DISTRIBUTION = "dagster-delta"
OUR_DISTRIBUTION = "dagster-delta-protocol"

_PEERS = (
    *("BackoffConfig", "ClientConfig", "SchemaMode", "BloomFilterProperties"),
    *("ColumnProperties", "CommitProperties", "DeltaMergeBuilder", "Field", "Metadata"),
    *("PostCommitHookProperties", "QueryBuilder", "Schema", "TableAlterer", "TableMerger"),
    *("TableOptimizer", "WhenMatchedDelete", "WhenMatchedUpdate", "WhenMatchedUpdateAll"),
    *("WhenNotMatchedBySourceDelete", "WhenNotMatchedBySourceUpdate", "WhenNotMatchedInsert"),
    *("WhenNotMatchedInsertAll", "WriterProperties", "WriteMode", "WriterEngine"),
    *("BaseDeltaLakeIOManager", "DeltaLakeIOManager", "DeltaLakePandasIOManager"),
    *("DeltaLakePolarsIOManager", "DeltaLakePyarrowIOManager", "PolarsDeltaIOManager"),
    *("DeltaWriteMode", "DeltaLakePandasTypeHandler", "DeltaLakePolarsTypeHandler"),
    *("DeltaLakePyArrowTypeHandler", "DeltalakeBaseArrowTypeHandler", "LazyPySparkResource"),
    *("PySparkResource", "write_deltalake", "AzureConfig", "GcsConfig", "LocalConfig"),
    *("S3Config"),
)
"""Public names of the projects that users move over from; docs/migration.md says what to use."""


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


def missing_name(name: str, names: Iterable[str]) -> AttributeError | ImportError:
    """The error for a name that `dagster_delta` does not have, among the public names.

    Returns:
        An ImportError for a name of a project that users move over from, because `from
        dagster_delta import …` hides the message of an AttributeError.
    """
    message = f"module 'dagster_delta' has no attribute {name!r}"
    if name in _PEERS:
        close = difflib.get_close_matches(name, names, n=1)
        nearest = f", the nearest name is {close[0]!r}" if close else ""
        message += (
            f"{nearest}; docs/migration.md says what to use instead. This is {OUR_DISTRIBUTION}; "
            f"the distribution {OTHER_DISTRIBUTION} is another project with the same import package"
        )
    if explanation := clash_explanation():
        message += f". Note that {explanation}"
    if name in _PEERS:
        return ImportError(message, name="dagster_delta")
    return AttributeError(message)
