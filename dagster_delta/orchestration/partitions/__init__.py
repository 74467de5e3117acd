"""Dagster partition keys as predicates and partition values of a table.

Tested by `tests/orchestration/partitions`.
"""
