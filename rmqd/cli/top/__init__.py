"""`rmqd top`: a live view of the running daemon, from the document of /api/v1/status.

`press` handles keys and `top_frame` renders the picture, both without a terminal. `TerminalScreen` and `run` do the
I/O. The view uses Rich, which the demo also needs. Textual would add keys and scrolling, and take 0.4 s more to start.
"""
