"""Spark SQL expressions computed over Arrow, by its kernels or by an embedded DuckDB."""
