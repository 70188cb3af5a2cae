"""The keys of the configuration, as pydantic models with defaults and ranges.

A field is `Annotated[type, kind]` with `setting(default, description)`: the kind checks and describes the value.
Pydantic's own checks are not used, because they accept "5" for 5, and their errors mention types that users do not
know.
"""
