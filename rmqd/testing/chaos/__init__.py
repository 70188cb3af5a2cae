"""`run_handler(..., chaos=True)`: checks whether a handler's effect depends on how often, and when, messages arrive.

The handler is called here as its group calls it, but without a consumer. So a history of deliveries is the same each
time, takes no time, and can be shortened.
"""
