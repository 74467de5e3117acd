"""What both engines do to rows: fill in columns, number, split and sort them."""
