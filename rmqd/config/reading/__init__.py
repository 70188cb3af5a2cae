"""Converts files and `--set` to plain data, with the location of every value.

Problems of files are collected, not raised, so that all of them are reported at once.
"""
