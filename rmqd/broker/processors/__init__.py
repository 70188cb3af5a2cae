"""The processors that answer requests, in one module for each subject.

A processor returns a reply, raises a refusal, or answers later (`Channel.reply`).
"""
