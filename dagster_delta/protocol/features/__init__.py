"""Table features, and what each requires of readers and writers."""
