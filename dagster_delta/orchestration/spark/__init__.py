"""The work of Spark for a step, shown in its run."""
