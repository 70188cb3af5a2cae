"""Request and response headers: one class for each, with the name of the Java class, and one module for each subject.

A command's `ext_fields` are strings. The header classes convert them to typed fields and back. The class of a request's
header has the request's `code`. Some headers of pulls and sends are converted by hand-written code, which is faster.
"""
