"""The folder of local state: whether it can be used is found out before anything runs."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from rmqd.consumer import process_lock
from rmqd.consumer.local_file_offset_store import LOCK_NAME
from rmqd.daemon.config import RootConfig
from rmqd.errors import ConfigError


def prepare_state_dir(config: RootConfig) -> None:
    """Make the folder of the broadcasting groups' offsets, if there are such groups. Raises ConfigError."""
    with _told_with_its_place(config) as directory:
        if directory is None:
            return
        directory.mkdir(parents=True, exist_ok=True)
        probe = directory / f"probe.{os.getpid()}"
        probe.touch()
        probe.unlink()


def refuse_second_process(config: RootConfig) -> None:
    """See that no other process has the broadcasting groups' offsets. Raises InUseError, ConfigError."""
    with _told_with_its_place(config) as directory:
        if directory is not None:
            process_lock.check_free(directory / LOCK_NAME)


@contextlib.contextmanager
def _told_with_its_place(config: RootConfig) -> Iterator[Path | None]:
    """The folder, None if no group needs it. An OSError in the block becomes a problem of the first group that does."""
    name = next((name for name, group in config.groups.items() if group.message_model == "broadcasting"), None)
    if name is None:
        yield None
        return
    directory = Path(config.state_dir) / "offsets"
    try:
        yield directory
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return  # a group that has offsets goes on from them, and stores again when there is room
        text = (
            f"broadcasting keeps offsets in {directory}, which cannot be written: {error.strerror or error}; "
            "accepted: with a state_dir that this user may write"
        )
        raise ConfigError([config.groups[name].problem(name, ("message_model",), text)]) from error
