"""The Delta protocol in pure code, without I/O.

Tested by `tests/protocol`, and against other writers by `tests/reference`.
"""

from __future__ import annotations
