"""Rules that report when they are read for the first time."""

from __future__ import annotations

import pytest

from images.broker.rules import NAMES, Rules, WatchedRules


def test_a_watched_rule_is_reported_when_it_is_read_for_the_first_time() -> None:
    read: list[str] = []
    rules = WatchedRules(Rules().without(["maximal_isr"]), read.append)
    assert read == []
    assert not rules.maximal_isr
    assert rules.idempotent_dedupe
    assert not rules.maximal_isr
    assert read == ["maximal_isr", "idempotent_dedupe"]


def test_watched_rules_are_the_rules_they_watch() -> None:
    rules = Rules().without(["vote_is_synced"])
    watched = WatchedRules(rules, lambda rule: None)
    assert {name: getattr(watched, name) for name in NAMES} == {name: getattr(rules, name) for name in NAMES}
    with pytest.raises(AttributeError, match="no_such_rule"):
        watched.no_such_rule  # noqa: B018
