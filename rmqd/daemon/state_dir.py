"""The folder of local state. It is checked before anything runs."""

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
    """Create the folders for the offsets of broadcasting groups, if there are such groups. Raises ConfigError."""
    for directory, group in _folders(config).items():
        with _told_with_its_place(config, group, directory):
            make_folder(directory)
            probe = directory / f"probe.{os.getpid()}"
            probe.touch()
            probe.unlink()


def refuse_second_process(config: RootConfig) -> None:
    """Check that no other process uses the folders of the groups' offsets. Raises InUseError, ConfigError."""
    for directory, group in _folders(config).items():
        with _told_with_its_place(config, group, directory):
            process_lock.check_free(directory / LOCK_NAME)


def _folders(config: RootConfig) -> dict[Path, str]:
    """Return the required folders, one for each cluster, with the first group that needs each."""
    folders: dict[Path, str] = {}
    for name, group in config.groups.items():
        if group.message_model == "broadcasting":
            folders.setdefault(Path(config.state_of(name)) / "offsets", name)
    return folders


@contextlib.contextmanager
def _told_with_its_place(config: RootConfig, group: str, directory: Path) -> Iterator[None]:
    """Turn an OSError in the block into a problem of the group."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return  # the disk is full: groups with offsets continue from these, and store new ones when there is room
        text = (
            f"{directory}, the folder of broadcasting offsets, cannot be written: {error.strerror or error}; "
            "set a writable state_dir"
        )
        raise ConfigError([config.groups[group].problem(group, ("message_model",), text)]) from error
