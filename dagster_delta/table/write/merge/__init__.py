"""MERGE: its statement, its plan and its commit."""
