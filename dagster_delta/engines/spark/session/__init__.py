"""Sessions, and Spark's names, types and errors."""
