"""The configuration `rmqd.yaml`: its keys, its parsing, its rules. Independent of plugins and the daemon.

A key is declared once, in `model`; schema, defaults and documentation follow from there. All problems of a
configuration are reported at once, each with file, line, key and the expected value. A loaded configuration never
changes.
"""
