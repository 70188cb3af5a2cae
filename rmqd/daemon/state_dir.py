"""The folder of local state: whether it can be used is found out before anything runs."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from rmqd.config.model.root import RootConfig
from rmqd.consumer.offsets import process_lock
from rmqd.consumer.offsets.local_file_store import LOCK_NAME
from rmqd.consumer.offsets.private_files import make_folder
from rmqd.errors import ConfigError


def prepare_state_dir(config: RootConfig) -> None:
    """Make the folders of the broadcasting groups' offsets, if there are such groups. Raises ConfigError."""
    for directory, group in _folders(config).items():
        with _told_with_its_place(config, group, directory):
            make_folder(directory)
            probe = directory / f"probe.{os.getpid()}"
            probe.touch()
            probe.unlink()


def refuse_second_process(config: RootConfig) -> None:
    """See that no other process has the broadcasting groups' offsets. Raises InUseError, ConfigError."""
    for directory, group in _folders(config).items():
        with _told_with_its_place(config, group, directory):
            process_lock.check_free(directory / LOCK_NAME)


def _folders(config: RootConfig) -> dict[Path, str]:
    """Each folder that is needed, one for a cluster, with the first group that needs it."""
    folders: dict[Path, str] = {}
    for name, group in config.groups.items():
        if group.message_model == "broadcasting":
            folders.setdefault(Path(config.state_of(name)) / "offsets", name)
    return folders


@contextlib.contextmanager
def _told_with_its_place(config: RootConfig, group: str, directory: Path) -> Iterator[None]:
    """An OSError in the block becomes a problem of the group."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return  # a group that has offsets goes on from them, and stores again when there is room
        text = (
            f"broadcasting keeps offsets in {directory}, which cannot be written: {error.strerror or error}; "
            "accepted: with a state_dir that this user may write"
        )
        raise ConfigError([config.groups[group].problem(group, ("message_model",), text)]) from error
