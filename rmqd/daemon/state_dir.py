"""The folder of local state: whether it can be used is found out before anything runs."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from rmqd.consumer import process_lock
from rmqd.consumer.local_file_offset_store import LOCK_NAME
from rmqd.daemon.config import RootConfig
from rmqd.errors import ConfigError


def prepare_state_dir(config: RootConfig) -> None:
    """Make the folder of the broadcasting groups' offsets, if there are such groups. Raises ConfigError."""
    for name, group in config.groups.items():
        if group.message_model != "broadcasting":
            continue
        directory = _offsets_directory(config)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            probe = directory / f"probe.{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                return  # a group that has offsets goes on from them, and stores again when there is room
            text = (
                f"broadcasting keeps offsets in {directory}, which cannot be written: {error.strerror or error}; "
                "accepted: with a state_dir that this user may write"
            )
            raise ConfigError([group.problem(name, ("message_model",), text)]) from error
        return


def refuse_second_process(config: RootConfig) -> None:
    """See that no other process has the broadcasting groups' offsets. Raises InUseError, and OSError."""
    if any(group.message_model == "broadcasting" for group in config.groups.values()):
        process_lock.check_free(_offsets_directory(config) / LOCK_NAME)


def _offsets_directory(config: RootConfig) -> Path:
    return Path(config.state_dir) / "offsets"
