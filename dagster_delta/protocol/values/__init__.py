"""Values of partitions and columns as Arrow.

Tested by `tests/protocol/values`.
"""
