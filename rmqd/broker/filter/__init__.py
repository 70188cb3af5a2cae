"""Filters for messages: by the hashes of tags, or by an SQL92 condition on properties.

The language is RocketMQ's (`SelectorParser.jj`), including its oddities: a condition must behave here as on a real
broker, even if it has a mistake.

    subscriptions  the filter of a subscription
    lexer, parser  a condition's text to its tree, with Java's errors
    expressions    the tree: the value of each part for a message's properties
    values         values, and Java's comparison of them
"""
