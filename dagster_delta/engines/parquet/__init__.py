"""Reads and writes Parquet data files with the schema of a table."""
