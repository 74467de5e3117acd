"""Converts values of one type to another, as Spark does."""
