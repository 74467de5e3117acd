"""The whitelist: functions and operators by kind of value, and how Spark types a call of each.

Tested by `tests/sql`.
"""
