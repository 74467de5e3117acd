"""The DuckDB SQL of the whitelist in `sql.functions`."""
