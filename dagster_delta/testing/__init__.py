"""Conformance suites and strategies for those who build on the library."""

from __future__ import annotations
