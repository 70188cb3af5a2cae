"""`rmqd top`: a live view of the running daemon, by the document of /api/v1/status.

What a key does is decided in `press`, what is shown in `frame`, both without a terminal; `screen` and `run` act. By
Rich, which is there for the demo: Textual would bring keys and scrolling, and take 0.4 s more to start.

    command  the command's options; one snapshot where there is no terminal
    columns  what is shown of a group and of a queue, and by what it is sorted
    state    what the person has chosen: list, cursor, order, filter, question
    press    what a key changes, and what it asks for
    frame    the picture: as many lines as the terminal has
    watch    asks the daemon beside the view, again and again; pauses, resumes, diagnoses
    screen   the terminal: its keys, its size, and how it is left
    run      from the first picture to the last
"""
