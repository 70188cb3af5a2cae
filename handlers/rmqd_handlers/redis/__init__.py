"""`redis`: messages as entries of a stream or elements of a list.

handler  the options; the connections; a batch is one call
script   what Redis does with a batch, at once
"""

from .handler import RedisHandler

__all__ = ["RedisHandler"]
