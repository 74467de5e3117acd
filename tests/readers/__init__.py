"""Which programs read the tables of this library, and which may write beside it: measured.

`python -m tests.readers` writes a table for each feature, asks each program for its rows, and
compares them with those of this library and of delta-spark. `dagster_delta/evolution/programs.json` has what they
said.
"""
