"""Rows of the conformance suite with a Java consumer; the other daily runs use the embedded broker without Java."""

from __future__ import annotations

import pytest

from tests.conformance.test_filters import test_filters_choose_what_they_choose_for_java
from tests.conformance.test_orderly import test_the_limit_makes_a_dead_letter
from tests.conformance.test_retries import test_failing_messages_go_java_s_way, topic
from tests.conformance.test_start import test_a_new_group_starts_where_it_says

__all__ = [
    "test_a_new_group_starts_where_it_says",
    "test_failing_messages_go_java_s_way",
    "test_filters_choose_what_they_choose_for_java",
    "test_the_limit_makes_a_dead_letter",
    "topic",
]

pytestmark = pytest.mark.rocketmq
