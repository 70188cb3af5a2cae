"""Deduplication stores: which messages were handled, and which are being handled."""
