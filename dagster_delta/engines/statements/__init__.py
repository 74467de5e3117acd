"""The meaning of the clauses of a statement, for every engine."""
