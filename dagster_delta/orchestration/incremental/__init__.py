"""The position of incremental assets in upstream tables, and new changes for them.

Tested by `tests/orchestration/incremental`.
"""
