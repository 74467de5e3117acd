"""Evaluates Spark SQL expressions over Arrow, by its kernels or by an embedded DuckDB."""
