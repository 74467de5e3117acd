"""Jobs that change the schema of a table from the Launchpad."""
