"""Which messages a group wants: by the hashes of tags, or by an SQL92 condition over properties.

The language is RocketMQ's (`SelectorParser.jj`), with its oddities: whoever tries a condition here must see what the
real broker would do with it, a mistake in it included.

    subscriptions  what a subscription lets through
    lexer, parser  a condition's text to its tree, with Java's refusals
    expressions    the tree: what each part gives for a message's properties
    values         values, and how Java compares them
"""
