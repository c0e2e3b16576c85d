"""Promises about group coordinators: what they serve, and the generations that they give out. See
`checkers.protocol.checker`."""

from __future__ import annotations

from collections.abc import Mapping

from checkers.evidence import CheckSettings
from checkers.protocol.state import UNKNOWN, PartitionState, TraceRowHandler
from checkers.tables import TraceRow


def _coordinator_loaded(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """From this event on the coordinator answers its groups."""
    began = (
        f"{event.node} began to serve its groups {event.at} in leader epoch {event.leader_epoch}, and had loaded its "
        f"log up to {event.log_end}"
    )
    if event.log_end > event.high_watermark:
        watermark = f"its high watermark was {event.high_watermark}: what lies between may be lost"
        partition.report(event, "coordinator-serves-uncommitted", event.high_watermark, began, watermark)
    start = partition.epoch_starts.get(event.node, UNKNOWN)
    if event.log_end < start:
        lacking = f"its leader epoch starts at {start}: it knows nothing of what lies between"
        partition.report(event, "coordinator-incomplete", event.log_end, began, lacking)


def _group_storing(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    detail = event.details()
    if detail.get("error") == "none":
        partition.group_records[event.node, str(detail.get("group"))] = event


def _generation_begun(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """Before its members get the number of a generation, the last record of the group is the one that begins it: the
    assignment of a generation is stored after that."""
    detail = event.details()
    group, generation = str(detail.get("group")), detail.get("generation")
    told = (
        f"{event.node} gave members the number of generation {generation} of the group {group} {event.at} in leader "
        f"epoch {event.leader_epoch}"
    )
    record = partition.group_records.get((event.node, group))
    if record is None or record.leader_epoch != event.leader_epoch or record.details().get("generation") != generation:
        missing = (
            "no record that begins the generation had been appended: a later coordinator may give its number again"
        )
        partition.report(event, "generation-told-early", event.log_end, told, missing)
    elif record.log_end > event.high_watermark:
        uncommitted = (
            f"the record that begins the generation ends at {record.log_end}, and its high watermark was "
            f"{event.high_watermark}"
        )
        partition.report(event, "generation-told-early", record.offset, told, uncommitted)


HANDLERS: Mapping[str, TraceRowHandler] = {
    "coordinator_loaded": _coordinator_loaded,
    "group_storing": _group_storing,
    "generation_begun": _generation_begun,
}
