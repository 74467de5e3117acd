"""Partition keys of Dagster as predicates and partition values of a table."""
