"""The version of rmqd, in a module that every package may import."""

__version__ = "0.2.0"
