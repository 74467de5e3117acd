"""Values of one type as values of another, as Spark converts them."""
