"""Temporary files of an operation that does not fit into memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from dagster_delta.errors import StorageFailure


@contextmanager
def scratch_directory(prefix: str) -> Iterator[str]:
    """The path of a new directory, which is removed with everything in it at the end.

    A full disk, here or inside the block, is a StorageFailure.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as directory:
            yield directory
    except (FileNotFoundError, FileExistsError):
        # Stores raise this error, and the block handles the errors that it expects.
        raise
    except OSError as error:
        raise StorageFailure.of_system(
            error,
            "A temporary file, or one that the given rows come from, could not be read or written "
            f"(temporary files are in {tempfile.gettempdir()}; the variable TMPDIR says where)",
        ) from error
