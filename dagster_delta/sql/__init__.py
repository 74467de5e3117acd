"""Spark SQL expressions as a language: parsed, typed and analysed, never evaluated."""
