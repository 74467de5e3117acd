"""What the clauses of a statement mean, for every engine."""
