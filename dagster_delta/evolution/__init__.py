"""Planning of schema changes."""

from __future__ import annotations
