"""Schema change, planned."""

from __future__ import annotations
