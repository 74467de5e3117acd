"""The transaction log: file names, commits, replay, conflicts, checksums.

Tested by `tests/protocol/log`.
"""
