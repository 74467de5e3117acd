"""The binary encoding of variants, and their JSON.

Tested by `tests/protocol/variant`.
"""
