"""`rmqd top`: a live view of the running daemon, from the document of /api/v1/status.

`top_screen.handle_key` handles keys and `top_frame` renders the screen, both without a terminal. `TerminalScreen` and
`run` use the terminal. The view uses Rich, which `rmqd demo` needs too. Textual would take 0.4 s more to start.
"""
