"""`message.once`: the handler's writes for a message, and the record that it is handled, in one transaction."""
