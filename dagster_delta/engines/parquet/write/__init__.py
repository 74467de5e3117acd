"""Parquet files written with their statistics."""
