"""A group's pipeline: rows in, and the sinks that rows go to."""
