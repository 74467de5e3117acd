"""Reads and writes one data file at a time, for both engines.

Tested by `tests/parquet`.
"""
