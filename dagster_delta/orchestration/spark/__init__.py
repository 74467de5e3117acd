"""What Spark does for a step, as its run shows it."""
