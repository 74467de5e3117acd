"""The project of this example."""
