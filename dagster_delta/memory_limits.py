"""Limits on what is read into memory at once, set by environment variables.

A table from another writer can name sizes that no machine has memory for. The limits turn these
into errors that name the variable that raises the limit.
"""

from __future__ import annotations

import os

from dagster_delta.errors import InvalidArgument, UnsupportedFeature

CHECKPOINT_BYTES_VARIABLE = "DAGSTER_DELTA_MAX_CHECKPOINT_BYTES"
"""Memory that the decoded columns of one Parquet file of a checkpoint may take."""
COMMIT_BYTES_VARIABLE = "DAGSTER_DELTA_MAX_COMMIT_BYTES"
"""Size of the largest file of the log that is read whole: commits, compacted commits, JSON
checkpoints, version checksums."""

# A commit that adds a million files with a kilobyte of statistics each.
_COMMIT_BYTES = 1024 * 1024 * 1024
# Ten million files without statistics. Larger tables have larger checkpoints.
_CHECKPOINT_BYTES = 1024 * 1024 * 1024
# Checkpoints hold names and statistics, which no compression reduces to a hundredth.
_DECODED_TO_STORED = 100
_LOG_PREFIX = "_delta_log/"


def check_log_file_size(path: str, size_bytes: int) -> None:
    """Raises UnsupportedFeature for a file of the log that is too large to be read whole."""
    # Reading the variable takes most of the time here, and nearly all files are small.
    if size_bytes <= 4096 or not path.startswith(_LOG_PREFIX):
        return
    limit = _setting(COMMIT_BYTES_VARIABLE) or _COMMIT_BYTES
    if size_bytes > limit:
        raise UnsupportedFeature(
            f"The file of the log has {size_bytes} bytes, and at most {limit} are read into "
            f"memory: it is damaged or hostile, or {COMMIT_BYTES_VARIABLE} has to be set to a "
            "larger number of bytes",
            file=path,
        )


def max_checkpoint_bytes(size_bytes: int) -> int:
    """Bytes that the decoded columns of one Parquet file of a checkpoint may take together."""
    set_limit = _setting(CHECKPOINT_BYTES_VARIABLE)
    return set_limit or max(_CHECKPOINT_BYTES, size_bytes * _DECODED_TO_STORED)


def _setting(variable: str) -> int | None:
    text = os.environ.get(variable, "").strip()
    if not text:
        return None
    if not text.isdecimal() or int(text) == 0:
        raise InvalidArgument(f"{variable} is {text!r}: set it to a number of bytes, or remove it")
    return int(text)
