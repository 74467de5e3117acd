"""ALTER TABLE statements, parsed but not planned."""
