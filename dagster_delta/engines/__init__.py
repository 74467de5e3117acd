"""How rows are read and written."""

from __future__ import annotations
