"""The DuckDB SQL of the whitelist: one module for each in `sql.functions`."""
