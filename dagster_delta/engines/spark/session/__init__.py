"""Sessions, and what names, types and errors are in Spark."""
