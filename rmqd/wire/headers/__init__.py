"""Request and response headers: one dataclass each with Java's name, one module for each subject.

A command's `ext_fields` are strings; these classes give them names and types. A request's class has its `code`. Headers
of frequent commands (pulls and sends) are read and written by hand, because that is faster.
"""
