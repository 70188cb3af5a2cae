"""Stored messages: from the bytes of a response to the handler's Message, and back to records.

A response is decoded in two steps. `decode` finds the records, checks the frame and CRC of each, and creates a Message
that knows only the position of its record; the fields are read on access. `compression` then decompresses bodies and
splits batches, within size limits, and in a thread if there is much to do. Untrustworthy records become CorruptMessages
and are never lost silently.
"""
