"""Statistics of files, and file skipping by predicates.

Tested by `tests/protocol/statistics`.
"""
