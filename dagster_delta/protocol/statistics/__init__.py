"""Statistics of files, and file skipping by predicates."""
