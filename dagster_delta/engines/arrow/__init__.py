"""The embedded engine: rows as Arrow record batches, in this process.

Tested by `tests/engines/arrow`, `tests/conformance`.
"""
