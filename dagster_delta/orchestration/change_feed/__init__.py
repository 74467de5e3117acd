"""What incremental assets have read, and what is new for them."""
