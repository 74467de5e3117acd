"""Planned files read as DataFrames."""
