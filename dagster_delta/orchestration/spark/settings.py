"""Settings of a Spark session that this package reads."""

HISTORY_SERVER_URL = "spark.dagster_delta.historyServerUrl"
"""URL of an application in the History Server, with `APPLICATION_ID` in it."""
APPLICATION_ID = "{application_id}"
"""Placeholder in `HISTORY_SERVER_URL` for the id of the application."""
