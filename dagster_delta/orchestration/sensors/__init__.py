"""Sensors on the log, and external tables as observable assets.

Tested by `tests/orchestration/sensors`.
"""
