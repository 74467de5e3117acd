"""The embedded engine: rows as Arrow record batches, in this process."""
