"""Sessions, and Spark's names, types and errors.

Tested by `tests/engines/spark`.
"""
