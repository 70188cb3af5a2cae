"""Rules about several keys: keys that require or exclude each other, names that RocketMQ refuses.

Rules are generators of findings with a path; `config.load` adds the line.
"""
