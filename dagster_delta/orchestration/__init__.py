"""Dagster: the only code here that imports it."""

from __future__ import annotations
