"""Measure rmqd, the official Java consumer, the Go client, and the limit of the broker."""
