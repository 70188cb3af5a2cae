"""Filters for messages: by the hashes of tags, or by an SQL92 condition on properties.

Conditions are accepted and evaluated exactly as in RocketMQ (`SelectorParser.jj`), including its oddities.
"""
