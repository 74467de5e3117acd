"""Two projects install the import package `dagster_delta`; this tells them apart and says so.

The distribution `dagster-delta` on PyPI belongs to another project. Installed into one environment,
the two overwrite each other's files, whichever came last wins, and imports fail in odd ways.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

__all__ = ["OTHER_DISTRIBUTION", "clash_explanation", "missing_attribute"]

OTHER_DISTRIBUTION = "dagster-delta"
OUR_DISTRIBUTION = "dagster-delta-protocol"

_A_CLAUSE = "the plain mapping of its fields"

_REPLACEMENTS = {
    "BackoffConfig": "none: the retries of requests are fixed",
    "ClientConfig": "none: the timeouts and retries of requests are fixed",
    "SchemaMode": 'a plain string, as in schema_mode="merge"',
    "WhenMatchedDelete": _A_CLAUSE,
    "WhenMatchedUpdate": _A_CLAUSE,
    "WhenMatchedUpdateAll": _A_CLAUSE,
    "WhenNotMatchedBySourceDelete": _A_CLAUSE,
    "WhenNotMatchedBySourceUpdate": _A_CLAUSE,
    "WhenNotMatchedInsert": _A_CLAUSE,
    "WhenNotMatchedInsertAll": _A_CLAUSE,
    "WriteMode": 'a plain string, as in mode="append"',
    "DeltaLakePyarrowIOManager": "DeltaIOManager",
    "DeltaLakePolarsIOManager": "DeltaIOManager",
    "BaseDeltaLakeIOManager": "DeltaIOManager",
    "AzureConfig": "AzureStorageOptions",
    "GcsConfig": "GcsStorageOptions",
    "LocalConfig": "LocalStorageOptions",
    "S3Config": "S3StorageOptions",
}
"""Public name of the other project that this one does not have to what stands for it here."""


@cache
def clash_explanation() -> str | None:
    """What to do about the other project being installed as well, or None if it is not."""
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


def missing_attribute(name: str) -> str:
    """The message for a name that `dagster_delta` does not have."""
    message = f"module 'dagster_delta' has no attribute {name!r}"
    if name in _REPLACEMENTS:
        message += (
            f"; its counterpart here is {_REPLACEMENTS[name]}. {name} belongs to the distribution "
            f"{OTHER_DISTRIBUTION}, another project with the same import package; this is "
            f"{OUR_DISTRIBUTION}"
        )
    explanation = clash_explanation()
    return f"{message}. Note that {explanation}" if explanation else message
