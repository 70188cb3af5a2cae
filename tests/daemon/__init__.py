"""Tests of the room rmqd.daemon."""
