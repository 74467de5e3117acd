"""Files of large tables found in the log by the executors."""
