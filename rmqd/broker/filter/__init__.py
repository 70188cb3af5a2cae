"""Which messages a group wants: by the hashes of tags, or by an SQL92 condition over properties.

The language is RocketMQ's (`SelectorParser.jj`), with its oddities: a condition that is tried here must behave as on
the real broker, also if it has a mistake.

    subscriptions  what a subscription lets through
    lexer, parser  a condition's text to its tree, with Java's refusals
    expressions    the tree: what each part gives for a message's properties
    values         values, and how Java compares them
"""
