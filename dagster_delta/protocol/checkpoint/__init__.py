"""Checkpoints, read and written column by column."""
