"""Registration, sessions and controlled shutdown of brokers (docs/protocol.md, sections 4 and 5)."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from images.broker.controller.requests import Registration
from images.broker.metadata.image import NoOp
from tests.broker.controller.controller_driver import TIMEOUT_MS, Driver, changed, state

# ---- registration and sessions (Kafka Replication Correctness §6.5.1) ------------------------------------------------


def test_a_broker_epoch_is_the_offset_of_its_registration_and_rises() -> None:
    driver = Driver()
    driver.start(1, 2)
    assert driver.register(3).broker_epoch == driver.epoch(3) == len(driver.log) - 1
    assert driver.epoch(1) < driver.epoch(2) < driver.epoch(3)


def test_a_registered_broker_stays_fenced_until_it_has_read_its_own_registration() -> None:
    driver = Driver()
    driver.start(2)
    epoch = driver.register(1).broker_epoch
    early = driver.beat(1, metadata_offset=epoch - 1)
    assert (early.error, early.fenced, early.caught_up) == (ErrorCode.none, True, False)
    assert not driver.beat(1, metadata_offset=epoch).fenced
    assert driver.epoch(1) == epoch, "unfencing keeps the broker epoch"


def test_a_second_incarnation_is_refused_while_the_session_of_the_first_is_alive() -> None:
    driver = Driver()
    driver.start(1)
    driver.now_ms += TIMEOUT_MS - 1
    assert driver.register(1).error is ErrorCode.duplicate_broker_registration
    driver.now_ms += 1
    assert driver.register(1).error is ErrorCode.none


def test_a_process_that_ended_before_its_first_heartbeat_has_no_session() -> None:
    driver = Driver()
    first = driver.register(1, incarnation="first")
    assert driver.register(1).error is ErrorCode.none, "it was fenced, and nobody relies on it"
    assert not driver.beat(1).fenced
    assert driver.register(1, incarnation="first").error is ErrorCode.duplicate_broker_registration
    assert driver.epoch(1) > first.broker_epoch


def test_without_the_rule_a_second_incarnation_replaces_the_first_at_once() -> None:
    driver = Driver("registration_waits_for_fencing")
    driver.start(1)
    assert driver.register(1).error is ErrorCode.none


def test_a_retry_of_the_same_incarnation_gets_the_same_broker_epoch_and_changes_nothing() -> None:
    driver = Driver()
    first = driver.register(1, incarnation="once")
    answers = []
    assert not changed(driver, lambda: answers.append(driver.register(1, incarnation="once")))
    assert answers == [first]


def test_the_broker_epoch_of_an_incarnation_that_was_replaced_is_stale() -> None:
    driver = Driver()
    driver.start(1)
    old = driver.epoch(1)
    driver.fence(1)
    driver.start(1)
    assert driver.beat(1, epoch=old).error is ErrorCode.stale_broker_epoch
    assert driver.controller.allocate_producer_ids(1, old).answer.error is ErrorCode.stale_broker_epoch


def test_a_heartbeat_of_an_unregistered_broker_is_refused() -> None:
    assert Driver().beat(9, epoch=0).error is ErrorCode.broker_id_not_registered


def test_a_fenced_broker_whose_heartbeats_get_through_is_unfenced_in_the_same_broker_epoch() -> None:
    driver = Driver()
    driver.start(1, 2)
    epoch = driver.epoch(1)
    driver.fence(1)
    assert not driver.beat(1, epoch=epoch).fenced


def test_sessions_end_one_at_a_time_the_longest_silent_first() -> None:
    driver = Driver()
    driver.start(1, 2, 3)
    driver.now_ms = 5
    driver.beat(2)
    assert driver.controller.next_expiry_ms() == TIMEOUT_MS
    assert not changed(driver, lambda: driver.commit(driver.controller.tick(TIMEOUT_MS - 1)))
    order = []
    for _ in range(4):
        driver.commit(driver.controller.tick(TIMEOUT_MS + 5))
        order.append([broker.id for broker in driver.image.brokers.values() if broker.fenced])
    assert order == [[1], [1, 3], [1, 2, 3], [1, 2, 3]]
    assert driver.controller.next_expiry_ms() is None


def test_a_controller_that_takes_over_grants_everybody_a_full_session() -> None:
    driver = Driver()
    driver.start(1)
    successor = Driver().controller.activate(driver.image, now_ms=50_000)
    assert successor.next_expiry_ms() == 50_000 + TIMEOUT_MS
    assert successor.tick(50_000 + TIMEOUT_MS - 1).records == ()
    assert successor.tick(50_000 + TIMEOUT_MS).records != ()


def test_a_broker_that_wants_to_be_fenced_is_and_stays_so() -> None:
    driver = Driver()
    driver.start(1, 2)
    driver.topic(1, 2)
    assert driver.beat(1, want_fence=True).fenced
    assert driver.partition.leader == 2
    assert not changed(driver, lambda: driver.beat(1, want_fence=True))
    assert not driver.beat(1).fenced


# ---- controlled shutdown ---------------------------------------------------------------------------------------------


def test_a_broker_that_wants_to_go_hands_over_leadership_first_and_goes_when_it_leads_nothing() -> None:
    driver = Driver()
    driver.start(1, 2)
    driver.topic(1, 2)
    first = driver.beat(1, want_shut_down=True)
    assert (first.should_shut_down, first.fenced) == (False, False)
    assert driver.image.brokers[1].shutting_down
    assert state(driver.partition) == (2, (2,), ())
    second = driver.beat(1, want_shut_down=True)
    assert (second.should_shut_down, second.fenced) == (True, True)


def test_a_broker_that_has_gone_need_not_wait_for_its_session_to_register_again() -> None:
    driver = Driver()
    driver.start(1)
    stored = driver.epoch(1)
    assert driver.beat(1, want_shut_down=True).should_shut_down
    assert driver.register(1, previous_epoch=stored).error is ErrorCode.none
    assert not driver.beat(1).fenced


def test_a_late_heartbeat_does_not_bring_back_a_broker_that_has_gone() -> None:
    driver = Driver()
    driver.start(1)
    driver.beat(1, want_shut_down=True)
    assert driver.beat(1).fenced


def test_the_last_in_sync_replica_may_go_and_leads_again_when_it_is_back() -> None:
    driver = Driver()
    driver.start(1)
    driver.topic(1)
    stored = driver.epoch(1)
    driver.beat(1, want_shut_down=True)
    assert driver.beat(1, want_shut_down=True).should_shut_down
    assert state(driver.partition) == (-1, (), (1,))
    driver.register(1, previous_epoch=stored)
    driver.beat(1)
    assert state(driver.partition) == (1, (1,), ())


def test_a_late_registration_of_an_earlier_life_leaves_a_clean_shutdown_clean() -> None:
    """The life that sent it had shut down cleanly in another broker epoch, and never heard that it is registered.
    Registered as unclean, it would take the only replica out of the ELR, and nobody could lead after that."""
    driver = Driver()
    driver.start(1)
    driver.topic(1)
    first = driver.epoch(1)
    _shut_down(driver)
    driver.register(1, previous_epoch=first)
    driver.beat(1)
    second = driver.epoch(1)
    _shut_down(driver)
    late = driver.controller.register(Registration(1, "late", "b1", 9092, first), driver.now_ms)
    assert late.answer.error is ErrorCode.stale_broker_epoch
    assert late.records == (NoOp(),), "a deposed controller must not have a broker give up its claim"
    driver.commit(late)
    assert (driver.epoch(1), driver.partition.elr) == (second, (1,))
    assert driver.register(1, previous_epoch=second).error is ErrorCode.none
    driver.beat(1)
    assert state(driver.partition) == (1, (1,), ())


def test_a_process_whose_claim_is_refused_registers_as_unclean() -> None:
    driver = Driver()
    driver.start(1)
    driver.topic(1)
    _shut_down(driver)
    assert driver.register(1, previous_epoch=99, incarnation="next").error is ErrorCode.stale_broker_epoch
    assert driver.partition.elr == (1,)
    assert driver.register(1, incarnation="next").error is ErrorCode.none
    assert driver.partition.elr == ()


def test_a_fenced_broker_that_wants_to_go_is_told_to_and_its_session_ends() -> None:
    driver = Driver()
    driver.register(1)
    assert driver.beat(1, want_shut_down=True).should_shut_down
    assert driver.register(1).error is ErrorCode.none


def _shut_down(driver: Driver) -> None:
    """Broker 1, which leads, hands over and goes."""
    driver.beat(1, want_shut_down=True)
    assert driver.beat(1, want_shut_down=True).should_shut_down
