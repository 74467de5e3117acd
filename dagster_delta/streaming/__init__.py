"""Tables as sources and sinks of streaming queries."""
