"""The DuckDB SQL of the whitelist: one module beside each of the language's."""
