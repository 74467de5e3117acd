"""Values of partitions and columns as Arrow."""
