"""What `dg` loads."""
