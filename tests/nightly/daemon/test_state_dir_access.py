"""The folder of local state: full disks, missing locks, and file modes.

The core of these tests is in tests/daemon/test_state_dir.py.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqd.consumer.offsets.local_file_store import LOCK_FILE_NAME, LocalFileOffsetStore
from rmqd.daemon.systemd import prepare_state_dir, refuse_second_process
from rmqd.errors import ConfigError
from rmqd.runtime.clock import SystemClock
from rmqd.wire.message_queue import MessageQueue
from tests.consumer.offsets.disks import disk_error
from tests.daemon.daemon_process import write_config
from tests.daemon.test_state_dir import BROADCASTING, load


def test_a_state_dir_on_a_full_disk_is_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group with stored offsets can continue from them."""

    def full(path: Path) -> None:
        raise disk_error()

    monkeypatch.setattr(Path, "touch", full)
    prepare_state_dir(load(write_config(tmp_path, "mailer", more=BROADCASTING)))


def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes could overwrite each other's offsets there."""
    config = load(write_config(tmp_path, "mailer", more=BROADCASTING))

    def refuse(descriptor: int, operation: int) -> None:
        raise disk_error(errno.ENOLCK)

    monkeypatch.setattr(fcntl, "flock", refuse)
    prepare_state_dir(config)
    with pytest.raises(ConfigError, match="cannot be written: No locks available"):
        refuse_second_process(config)


@pytest.fixture
def lenient_umask() -> Iterator[None]:
    """A umask that removes no permissions."""
    former = os.umask(0)
    yield
    os.umask(former)


@pytest.mark.usefixtures("lenient_umask")
async def test_only_the_owner_and_its_group_can_access_local_state(tmp_path: Path) -> None:
    """Neither the umask nor the mode of an older file matters."""
    folder = tmp_path / "state" / "offsets"
    folder.parent.mkdir()
    folder.mkdir()
    (folder / LOCK_FILE_NAME).touch()
    store = LocalFileOffsetStore(str(folder), "mailer", SystemClock())
    await store.open()
    await store.persist({MessageQueue("orders", "broker-a", 0): 5})
    await store.close()
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in folder.rglob("*")}
    assert modes == {"mailer": oct(0o750), "offsets.json": oct(0o640), LOCK_FILE_NAME: oct(0o640)}
