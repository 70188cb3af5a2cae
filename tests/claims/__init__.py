"""The stores of `deduplicate`, each against the real thing."""
