"""Effect and record of a message in one transaction."""
