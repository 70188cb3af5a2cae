"""Measures rmqd beside the official Java consumer, the Go client, and what the broker can give at all."""
