"""What the Delta protocol says: pure, without input or output."""

from __future__ import annotations
