"""Parsing, output and connections that all commands share."""
