"""Table features, and what each requires of readers and writers.

Tested by `tests/protocol/features`.
"""
