"""Writes Parquet files with their statistics."""
