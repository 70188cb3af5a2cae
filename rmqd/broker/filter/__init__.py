"""Which messages a group wants: by the hashes of tags, or by an SQL92 condition over properties.

The language is RocketMQ's (`SelectorParser.jj`), with its oddities: whoever tries a condition here must see what the
real broker would do with it, a mistake in it included.
"""
