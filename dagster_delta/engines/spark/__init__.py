"""The distributed engine: reads and writes through PySpark.

Tested by `tests/engines/spark`, `tests/conformance`.
"""
