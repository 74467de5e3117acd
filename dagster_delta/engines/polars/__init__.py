"""Rows as polars LazyFrames, read by the embedded engine when a query runs."""

from dagster_delta.engines.polars.lazy_rows import lazy_frame

__all__ = ["lazy_frame"]
