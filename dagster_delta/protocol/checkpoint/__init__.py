"""Checkpoints, read and written column by column.

Tested by `tests/protocol/checkpoint`.
"""
