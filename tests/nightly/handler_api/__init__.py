"""Tests of the package rmqd.handler_api."""
