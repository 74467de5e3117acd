"""Bounds that the protocol sets for what stands in JSON, and JSON itself does not.

Spec: Actions.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

__all__ = ["DECODING_ERRORS", "Count", "Int64", "RowCount", "SmallCount"]

Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A number that fits 64 bits, as the columns, files and readers that take it need."""
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A number of bytes or rows."""
RowCount: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""A number of rows of one file. More would be no exact number where shares are computed."""
SmallCount: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
"""A number of bytes that fits the 32 bits of a deletion vector's descriptor."""

DECODING_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding JSON raises: no JSON, values of other types, no UTF-8, or too deep a nesting."""
