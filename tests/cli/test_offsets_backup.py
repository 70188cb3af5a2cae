"""The backup file with a group's offsets: writing, reading and validation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rmqd.cli.offset_changes import Backup, SavedOffset, now_text
from rmqd.errors import ExitCode
from tests.cli.in_process import rmqd

BACKUP = Backup(
    "mailer",
    "%RETRY%mailer",
    "shop",
    "127.0.0.1:9876",
    "2026-11-25T08:14:03.120311Z",
    (SavedOffset("broker-a", 0, 17), SavedOffset("broker-a", 1, None)),
)


def test_a_backup_is_read_as_it_was_written(tmp_path: Path) -> None:
    """The folder is created. Only the owner and the owner's group can read the file."""
    path = BACKUP.write(tmp_path / "state" / "backups")
    assert path.name == "mailer-%RETRY%mailer-2026-11-25T081403.120311Z.json"
    assert Backup.read(path) == BACKUP
    assert path.stat().st_mode & 0o007 == 0
    assert len(now_text()) == len(BACKUP.made_at)


def test_the_longest_names_fit_into_a_file_s_name(tmp_path: Path) -> None:
    """RocketMQ allows 120 characters for a group, and 127 for a topic such as the group's retry topic."""
    backup = replace(BACKUP, group="g" * 120, topic=f"%RETRY%{'g' * 120}")
    assert Backup.read(backup.write(tmp_path)) == backup


def test_invalid_backups_are_refused(tmp_path: Path) -> None:
    path = BACKUP.write(tmp_path)
    document = json.loads(path.read_text())
    changes: list[dict[str, object]] = [
        {"form": "rmqd offsets 2"},
        {"group": 1},
        {"more": ""},
        {"offsets": [{"broker": "broker-a", "queue": 0, "offset": -1}]},
        {"offsets": [{"broker": "broker-a", "queue": True, "offset": 1}]},
        {"offsets": [{"broker": "broker-a", "queue": 0}]},
        {"offsets": 5},
        {"offsets": [5]},
    ]
    for text in ("", "[]", "{", "\xff", *(json.dumps(document | change) for change in changes)):
        path.write_text(text, encoding="latin-1")
        with pytest.raises(ValueError, match=r"."):
            Backup.read(path)
        assert rmqd("offsets", "restore", path, "-n", "127.0.0.1:1").code == ExitCode.USAGE, text
