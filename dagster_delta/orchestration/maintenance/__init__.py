"""Jobs, schedules and ops that keep tables in shape."""
