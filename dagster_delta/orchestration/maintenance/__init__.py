"""Jobs, schedules and ops for table maintenance.

Tested by `tests/orchestration/maintenance`.
"""
