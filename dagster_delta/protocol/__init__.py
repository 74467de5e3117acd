"""The Delta protocol in pure code, without I/O."""

from __future__ import annotations
