"""`redis`: adds messages as entries of a stream or elements of a list.

handler  the options and connections; a batch is one call
script   the script that adds a batch atomically
"""

from .handler import RedisHandler

__all__ = ["RedisHandler"]
