"""DataFrames written as data files, by the executors.

Tested by `tests/engines/spark`, `tests/conformance`.
"""
