"""The log of a table, read through a store and refreshed.

Tested by `tests/table/log`.
"""
