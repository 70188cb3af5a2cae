"""Groups on clusters: a packed environment, and what spark-submit is told."""
