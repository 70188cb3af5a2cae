"""Bodies of requests and responses in JSON: one dataclass each with Java's name, one module for each subject.

The docstring of a class names the request or response that has this body. `from_json` and `to_json` read and write it.
A class declares only its fields with types and defaults; `json_body` does the rest. The dialect is fastjson's
(`loose_json`): map keys may be numbers or whole objects.
"""
