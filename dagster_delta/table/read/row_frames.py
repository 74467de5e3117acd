"""One stream of rows in the forms that callers want it in."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from dagster_delta.errors import InvalidArgument

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

__all__ = ["RowFrames"]


class RowFrames(ABC):
    """What can be read batch by batch, and so as a whole too."""

    @abstractmethod
    def to_batches(self) -> pa.RecordBatchReader:
        """The rows as a `pa.RecordBatchReader`."""

    def to_arrow(self) -> pa.Table:
        """The rows as a `pa.Table`. Raises as `to_batches` does."""
        return self.to_batches().read_all()

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a pandas frame. Raises as `to_batches` does."""
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def to_polars(self) -> pl.DataFrame:
        """The rows as a polars frame.

        Raises:
            InvalidArgument: polars is not installed; and as `to_batches` does.
        """
        frame: pl.DataFrame = _require("polars").from_arrow(self.to_arrow())
        return frame


def _require(module: str) -> Any:
    """A module of an optional dependency.

    Raises:
        InvalidArgument: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InvalidArgument(
            f"{module} is not installed: pip install 'dagster-delta-protocol[{module}]', "
            "or use to_arrow()"
        ) from error
