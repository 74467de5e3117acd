"""Tables as sources and sinks of streaming queries.

Tested by `tests/streaming`.
"""
