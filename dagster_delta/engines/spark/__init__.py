"""The distributed engine: reads and writes through PySpark."""
