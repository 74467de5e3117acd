"""Spark SQL expressions without a JVM: parsed here, evaluated by Arrow and DuckDB."""
