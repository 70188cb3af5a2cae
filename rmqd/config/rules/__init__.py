"""Rules about several keys: keys that require or exclude each other, names that RocketMQ refuses.

A rule is a generator of findings. A finding has the path of a key; `config.load` adds the file and the line.
"""
