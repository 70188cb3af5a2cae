"""The configuration `rmqd.yaml`: its keys, its reading, its rules. Knows no plugin and no daemon.

A key is declared once, in `model`; schema, defaults and documentation follow from there. All problems of a
configuration are found at once, each with file, line, key and what is accepted. A loaded configuration never changes.

    load      load_config: from a path to a RootConfig, or ConfigError with every problem
    problems  Finding: something wrong at a path; the line that `rmqd check` prints; guesses at misspelt names
    schema    the JSON Schema
    shown     the configuration as people may see it: in force, without secrets
    model     the keys: kinds of value, defaults, ranges
    reading   files, `--set` and `${...}`, with the place of every value
    rules     what no single value can say
"""
