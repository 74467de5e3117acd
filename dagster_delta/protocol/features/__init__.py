"""Table features: which there are, and what each asks of readers and writers."""
