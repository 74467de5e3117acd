"""Data files: Parquet in, Parquet out, with the table's schema laid over them."""
