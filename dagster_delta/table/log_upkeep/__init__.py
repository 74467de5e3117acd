"""What follows a commit: checksums, checkpoints and log clean-up.

Tested by `tests/table/log_upkeep`.
"""
