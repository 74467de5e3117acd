"""The meaning of the clauses of a statement, for every engine.

Tested by `tests/table/operations`, `tests/conformance`.
"""
