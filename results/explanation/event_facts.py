"""What events of the trace say that several steps ask for."""

from __future__ import annotations

from checkers.tables import TraceRow


def positions_of(event: TraceRow) -> dict[int, int]:
    """The positions that a leader held, by replica."""
    positions = event.details().get("positions")
    return {int(replica): end for replica, end in positions.items()} if isinstance(positions, dict) else {}


def batch_of(event: TraceRow) -> tuple[int, int, int] | None:
    """The identity of an appended batch; None for one without a producer."""
    detail = event.details()
    batch = (detail.get("producer_id"), detail.get("sequence"), detail.get("crc"))
    if not all(isinstance(part, int) for part in batch) or batch[0] < 0:  # type: ignore[operator]
        return None
    return batch  # type: ignore[return-value]


def is_unclean_election(event: TraceRow) -> bool:
    """Whether the controllers elect a leader that may lack committed records, as the topic's strategy asks for."""
    detail = event.details() if event.kind == "partition_changed" and event.leader >= 0 else {}
    return detail.get("unclean") is True or "unclean" in str(detail.get("reason"))


def session_of(refused: TraceRow) -> tuple[str, int, int, str]:
    """For which session, at which controller, a registration is refused, and which."""
    return refused.node, refused.broker, refused.broker_epoch, refused.details()["incarnation"]


def take_past(pending: dict[int, int], now_ns: int) -> list[tuple[int, int]]:
    """Take out of `pending`, brokers with the instant of an event, those whose instant is over."""
    over = sorted((broker, time_ns) for broker, time_ns in pending.items() if time_ns < now_ns)
    for broker, _ in over:
        del pending[broker]
    return over
