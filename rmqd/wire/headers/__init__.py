"""Request and response headers, one dataclass each under Java's name for it, one module per subject.

A command's `ext_fields` are strings; these classes give them names and types.
"""
