"""DELETE, UPDATE and MERGE over data files: matching, rewriting, change files."""
