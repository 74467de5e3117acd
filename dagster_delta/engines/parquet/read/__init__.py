"""Reads Parquet files as rows of a table."""
