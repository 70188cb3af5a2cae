"""Tests of the room spark: of its pure parts, of its readers called as Spark calls them, and with a session."""
