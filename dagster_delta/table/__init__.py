"""Tables, snapshots, scans and transactions.

Tested by `tests/table`, and against other writers by `tests/reference`.
"""

from __future__ import annotations
