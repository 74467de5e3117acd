"""OPTIMIZE, VACUUM, RESTORE, CLONE and the health of a table."""
