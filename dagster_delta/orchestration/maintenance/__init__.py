"""Jobs, schedules and ops for table maintenance."""
