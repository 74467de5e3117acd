"""Bounds that the protocol sets for JSON values.

Spec: Actions.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A number that fits in 64 bits, as columns, files and other readers require."""
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A number of bytes or rows."""
RowCount: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""A number of rows of one file. A float represents numbers up to this bound exactly."""
SmallCount: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
"""A number of bytes that fits the 32 bits of a deletion vector's descriptor."""

DECODING_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding JSON raises: invalid JSON, wrong types, invalid UTF-8, or nesting that is too
deep."""
