"""DELETE, UPDATE and MERGE on the executors.

Tested by `tests/conformance`, `tests/table/operations/test_spark_changes.py`.
"""
