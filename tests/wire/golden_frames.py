"""Frames recorded from a real RocketMQ, by name."""

from __future__ import annotations

from pathlib import Path

from rmqd.wire.command import FrameDecoder, RemotingCommand, decode_command

FOLDER = Path(__file__).parent / "golden"
NAMES = sorted(path.stem for path in FOLDER.glob("*.hex"))


def frame(name: str) -> bytes:
    """Return the bytes of a recorded frame."""
    return bytes.fromhex((FOLDER / f"{name}.hex").read_text())


def command(name: str) -> RemotingCommand:
    """Decode a recorded frame."""
    (payload,) = FrameDecoder().feed(frame(name))
    return decode_command(payload)
