"""Pages about the project, and what generates them."""
