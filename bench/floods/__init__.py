"""What a hostile or damaged peer does to a daemon: how long its event loop is kept, and how much memory it takes."""
