"""Asset checks on tables.

Tested by `tests/orchestration/checks`.
"""
