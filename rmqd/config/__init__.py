"""The configuration `rmqd.yaml`: its keys, its parsing, its rules. Independent of plugins and the daemon.

A key is declared once, in `model`; schema, defaults and documentation follow from there. All problems of a
configuration are reported at once, each with file, line, key and the expected value. A loaded configuration never
changes.

    load      load_config: from a path to a RootConfig, or ConfigError with every problem
    problems  Finding: a problem at a path; the line that `rmqd check` prints; suggestions for misspelt names
    schema    the JSON Schema
    shown     the current configuration without secrets
    model     the keys: kinds of value, defaults, ranges
    reading   files, `--set` and `${...}`, with the file and line of every value
    rules     rules that involve several keys
"""
