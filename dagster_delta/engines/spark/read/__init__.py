"""Planned files read as DataFrames.

Tested by `tests/engines/spark`, `tests/conformance`.
"""
