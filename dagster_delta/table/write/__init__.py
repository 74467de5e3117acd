"""Transactions, commits, and the writes built on them."""
