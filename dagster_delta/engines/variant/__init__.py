"""Variants as columns."""
