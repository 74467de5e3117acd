"""Changes of the schema, and online changes of a column."""
