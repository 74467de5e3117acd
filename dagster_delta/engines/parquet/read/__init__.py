"""Parquet files read as the rows of a table."""
