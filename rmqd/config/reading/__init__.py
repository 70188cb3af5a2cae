"""From files and `--set` to plain data in which every value knows its place.

What is wrong with a file is collected and not raised, so that all problems are told at once.

    files         find_config; which files a configuration is in, and its names, without validation
    source        their trees in one, `groups/*.yaml`, `--set`; secrets that do not belong on a command line
    yaml_tree     YAML text to a tree with line and column of every key; bounded in depth and size
    substitution  `${NAME}`, `${NAME:-default}`, `${file:PATH}`
    data          the tree as the models validate it, and the places beside it
    exposure      secrets in a file that everybody on the machine may read
"""
