"""JSON bodies of requests and responses. Each body has a class with the Java class's name; each subject has a module.

The docstring of a class names the request or response with this body. `from_json` and `to_json` read and write the
body. A class declares only fields with types and defaults; `json_body` creates the readers and writers. The JSON is
fastjson's dialect (`loose_json`), in which map keys may be numbers or whole objects.
"""
