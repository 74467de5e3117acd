"""The statements on a table, one module for each."""
