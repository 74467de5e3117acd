"""The Parquet format below Arrow: footers, their Thrift encoding, and readers of open files.

The ground of `parquet/`, and of the checkpoints of `protocol/`.

Tested by `tests/parquet_format`.
"""

from __future__ import annotations
