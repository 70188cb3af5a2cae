"""The file with a group's offsets: what is written is read, and nothing else is."""

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


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Into a folder that was not there, for its owner and the owner's group."""
    path = BACKUP.write(tmp_path / "state" / "backups")
    assert path.name == "mailer-%RETRY%mailer-2026-11-25T081403.120311Z.json"
    assert Backup.read(path) == BACKUP
    assert path.stat().st_mode & 0o007 == 0
    assert len(now_text()) == len(BACKUP.made_at)


def test_the_longest_names_fit_into_a_file_s_name(tmp_path: Path) -> None:
    """RocketMQ takes groups of 120 characters, topics of 127, and of a group's retry topic 8 more."""
    backup = replace(BACKUP, group="g" * 120, topic=f"%RETRY%{'g' * 120}")
    assert Backup.read(backup.write(tmp_path)) == backup


def test_what_is_no_backup_is_refused(tmp_path: Path) -> None:
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
