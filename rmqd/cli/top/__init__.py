"""`rmqd top`: a live view of the running daemon, from the document of /api/v1/status.

`press` handles keys and `frame` makes the picture, both without a terminal; `screen` and `run` do the I/O. The view
uses Rich, which the demo also needs. Textual would add keys and scrolling, and take 0.4 s more to start.

    command  the command's options; a single snapshot without a terminal
    columns  the columns of groups and queues, with their sort keys
    state    the user's choices: list, cursor, order, filter, question
    press    the changes and requests of each key
    frame    the picture: as many lines as the terminal has
    watch    queries the daemon in the background; pauses, resumes, diagnoses
    screen   the terminal: its keys, its size, and its restoration
    run      the loop from the first picture to the last
"""
