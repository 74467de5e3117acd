"""Spark SQL expressions: parsed, typed, and evaluated over Arrow by its kernels or by DuckDB.

Tested by `tests/sql`.
"""
