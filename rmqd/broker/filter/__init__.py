"""Filters for messages: by the hashes of tags, or by an SQL92 condition on properties.

The language is RocketMQ's (`SelectorParser.jj`), including its oddities: a condition must behave here as on a real
broker, even if it has a mistake.
"""
