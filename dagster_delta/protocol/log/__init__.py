"""The transaction log: file names, commits, replay, conflicts, checksums."""
