"""Tables, snapshots, scans and transactions."""

from __future__ import annotations
