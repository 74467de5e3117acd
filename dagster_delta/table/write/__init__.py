"""Transactions and commits, and the writes that are made of them."""
