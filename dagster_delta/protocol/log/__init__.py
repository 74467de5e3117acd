"""The transaction log: names of its files, commits, replay, conflicts, checksums."""
