"""The log of a table, read through a store and kept up to date."""
