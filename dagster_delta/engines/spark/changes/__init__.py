"""DELETE, UPDATE and MERGE on the executors."""
