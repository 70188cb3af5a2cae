"""Tests of `rmqd.handler_api`."""
