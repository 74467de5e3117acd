"""Snapshots, scans and change feeds: what one version, or a range of them, holds.

Tested by `tests/table/read`.
"""
