"""`run_handler(..., chaos=True)`: checks whether a handler's effect depends on how often, and when, messages arrive.

Handlers are called as in their group, but without a consumer. So a history of deliveries can be repeated exactly, needs
no waiting, and can be shortened.
"""
