"""The configuration `rmqd.yaml`: its keys, its parsing and its rules. It does not use plugins or the daemon.

Each key is declared once; the JSON Schema, defaults and documentation are generated from the declaration. All problems
of a configuration are reported at once, each with file, line, key and expected value. A loaded configuration never
changes.
"""
