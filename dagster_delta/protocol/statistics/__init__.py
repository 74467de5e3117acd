"""Statistics of files, and what predicates can tell from them."""
