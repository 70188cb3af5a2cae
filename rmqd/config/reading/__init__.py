"""Converts files and `--set` to plain data, with the location of every value.

Problems of files are collected, not raised, so that all of them are reported at once.

    files         find_config; the files of a configuration, and its names, without validation
    source        merges their trees, `groups/*.yaml` and `--set`; secrets that do not belong on a command line
    yaml_tree     YAML text to a tree with line and column of every key; limited depth and size
    substitution  `${NAME}`, `${NAME:-default}`, `${file:PATH}`
    data          the tree as plain data for the models, and the locations
    exposure      secrets in files that all users of the machine can read
"""
