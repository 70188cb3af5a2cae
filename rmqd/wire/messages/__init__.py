"""Stored messages: from the bytes of a response to the handler's Message, and back to records.

A response is decoded in two steps. `decode` finds the records, checks the lengths and CRC of each, and creates Messages
that store only the positions of their records; fields are read on access. `compression` then decompresses bodies and
splits batches, within size limits, and in a thread if there is much to do. Damaged records become CorruptMessages, so
that they are never lost silently.
"""
