"""Rows of tables as polars frames, read by polars itself where that gives the same rows."""

from dagster_delta.engines.polars.file_frames import FileFrames, is_readable
from dagster_delta.engines.polars.lazy_rows import lazy_frame

__all__ = ["FileFrames", "is_readable", "lazy_frame"]
