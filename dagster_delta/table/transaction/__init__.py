"""What a change of a table reads and stages, and its commit to the log.

Tested by `tests/table/transaction`.
"""
