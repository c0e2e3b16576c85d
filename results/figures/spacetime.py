"""The space-time diagram of a story: a lane a node, messages between them, and each node's high watermark and log end.

The trace has events of nodes, not messages. A message is drawn where two events show that it must have gone from one
node to the other between them: a follower appends what its leader appended before, a broker takes up what a controller
decided. Its line therefore begins no later than the message was sent and ends no earlier than it arrived. A follower
asks for records when it is done with those before, so records begin no earlier than its event before. Fetch requests
leave no event, and are not drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise
from typing import Final

from checkers.evidence import RunEvidence
from checkers.tables import TraceRow
from results.explanation.replay import events_of
from results.explanation.story import Story, brokers, span
from results.figures import faults
from results.figures.canvas import GREY, NODE_COLOURS, Figure, lane_line, layout_of, run_end_s, stacked
from results.figures.findings import RED, marked
from results.run.downtime import Downtime, downtimes
from workloads.columns import NEVER

CHECKS: Final = "checks"
"""The lane of what the checks found."""
BEFORE_S_MAX: Final = 3.0
AFTER_S_MAX: Final = 3.0
MESSAGES_MAX: Final = 300
"""Of one kind in a diagram: the ones nearest to the cause."""
_SYMBOLS: Final = {
    "appended": "circle",
    "truncated": "x",
    "high_watermark": "triangle-up",
    "isr_proposed": "diamond-open",
    "partition_changed": "diamond",
    "isr_committed": "diamond-tall",
    "became_leader": "star",
    "became_follower": "star-open",
    "acknowledged": "square",
    "log_recovered": "cross",
    "node_started": "hexagon",
}
_ROLES: Final = ("became_leader", "became_follower", "resigned", "log_recovered")


@dataclass(frozen=True, slots=True)
class Message:
    """A message that two events show."""

    kind: str
    sender: str
    sent_ns: int
    receiver: str
    received_ns: int
    text: str


def draw(evidence: RunEvidence, story: Story) -> Figure | None:
    """The nodes around the story's cause; None when the trace has no event of its partition then."""
    if not story.topic or story.time_ns < 0:
        return None
    events = list(events_of(evidence.trace, story.topic, story.partition))
    first_ns, last_ns = _window(story)
    drawn = [event for event in events if first_ns <= event.time_ns <= last_ns]
    nodes = sorted({event.node for event in events if event.kind != "broker_registered"})
    if not drawn:
        return None
    lanes = [*nodes, CHECKS]
    injected = [
        fault
        for fault in faults.injected(evidence.faults, run_end_s(evidence))
        if fault.had_effect and fault.began_s <= last_ns / 1e9 and fault.ended_s >= first_ns / 1e9
    ]
    rows_px = (36 * len(lanes), 130)
    above, below = stacked(rows_px, gap_px=26)
    layout = layout_of(height=sum(rows_px) + 26 + 110)
    layout |= {
        "meta": {"alone": True},
        "xaxis": {
            "range": [round(first_ns / 1e9, 6), round(last_ns / 1e9, 6)],
            "title": {"text": "seconds"},
            "anchor": "y2",
            "zeroline": False,
        },
        "yaxis": {
            "domain": above,
            "type": "category",
            "categoryorder": "array",
            "categoryarray": lanes[::-1],
            "range": [-0.6, len(lanes) - 0.4],
            "fixedrange": True,
        },
        "yaxis2": {"domain": below, "title": {"text": "HW, log end"}, "nticks": 6},
        "shapes": list(_fault_boxes(injected, lanes[::-1], first_ns, last_ns)),
    }
    down = downtimes(evidence)
    data = [
        *_roles(events, nodes, first_ns, last_ns, down),
        *_messages(list(messages(events)), story.time_ns, first_ns, last_ns),
        *_events(drawn),
        *_fault_signs(injected, nodes, first_ns),
        *_findings(story),
        *_watermarks(events, nodes, first_ns, last_ns, down),
    ]
    return marked({"data": data, "layout": layout}, [story])


def _window(story: Story) -> tuple[int, int]:
    """From the events that led to the cause to the first findings after it, a little wider."""
    cause_ns = story.time_ns
    before = [time_ns for time_ns, _ in story.step.before] if story.step is not None else []
    after = [item.time_ns for item in story.consequences if item.time_ns > cause_ns]
    earliest = max(min([*before, cause_ns]), cause_ns - round(BEFORE_S_MAX * 1e9))
    latest = min(min(after, default=cause_ns), cause_ns + round(AFTER_S_MAX * 1e9))
    margin = max(10_000_000, (latest - earliest) // 6)
    return max(0, earliest - margin), latest + margin


# ---- messages --------------------------------------------------------------------------------------------------------


def messages(events: Sequence[TraceRow]) -> Iterator[Message]:
    """Every message between two nodes that the events show, in the order of arrival."""
    appended: dict[tuple[int, int], TraceRow] = {}
    watermarks: dict[int, TraceRow] = {}
    proposals: dict[tuple[int, ...], TraceRow] = {}
    decisions: dict[int, TraceRow] = {}
    diverging: dict[int, TraceRow] = {}
    instants: dict[str, tuple[int, int]] = {}  # node → time of its event before the current instant, and of that
    for event in events:
        before_ns, now_ns = instants.get(event.node, (-1, -1))
        if event.time_ns > now_ns:
            before_ns = now_ns
        instants[event.node] = before_ns, event.time_ns
        if event.kind == "appended":
            sent = appended.setdefault((event.offset, event.leader_epoch), event)
            if event.leader == event.number:
                appended[event.offset, event.leader_epoch] = event
            elif sent.node == f"b{event.leader}":
                records = f"{span(event.offset, event.log_end)} of epoch {event.leader_epoch}"
                asked_ns = max(sent.time_ns, before_ns)
                yield replace(_message("records", sent, event, records), sent_ns=asked_ns)
        elif event.kind == "high_watermark":
            watermarks[event.high_watermark] = event
        elif event.kind == "follower_high_watermark" and (moved := watermarks.get(event.high_watermark)) is not None:
            if moved.node == f"b{event.leader}":
                yield _message("high watermark", moved, event, f"high watermark {event.high_watermark}")
        elif event.kind == "isr_proposed":
            proposals[tuple(sorted(event.members))] = event
        elif event.kind == "partition_changed":
            decisions[event.partition_epoch] = event
            asked = proposals.pop(tuple(sorted(event.members)), None)
            if asked is not None and event.details().get("reason") == "alter_partition":
                yield _message("AlterPartition", asked, event, f"ISR {brokers(frozenset(event.members))}")
        elif event.kind in ("became_leader", "became_follower", "isr_committed"):
            decided = decisions.get(event.partition_epoch)
            if decided is not None:
                yield _message("decision", decided, event, f"partition epoch {event.partition_epoch}")
        elif event.kind == "diverging":
            diverging[int(event.details().get("replica", -1))] = event
        elif event.kind == "truncated" and (answer := diverging.pop(event.number, None)) is not None:
            yield _message("diverging epoch", answer, event, f"ends at {answer.offset}")


def _message(kind: str, sent: TraceRow, received: TraceRow, text: str) -> Message:
    return Message(kind, sent.node, sent.time_ns, received.node, received.time_ns, text)


_COLOURS: Final = {
    "records": GREY,
    "high watermark": "#3aa6a6",
    "AlterPartition": "#8b6fd1",
    "decision": "#a08a1c",
    "diverging epoch": "#b04a4a",
}


def _messages(every: Sequence[Message], cause_ns: int, first_ns: int, last_ns: int) -> Iterator[Figure]:
    for kind, colour in _COLOURS.items():
        within = [one for one in every if one.kind == kind and one.sent_ns <= last_ns and one.received_ns >= first_ns]
        within.sort(key=lambda one: (abs(one.received_ns - cause_ns), one.received_ns, one.receiver))
        x: list[float | None] = []
        y: list[str | None] = []
        text: list[str] = []
        for one in within[:MESSAGES_MAX]:
            x += [_s(one.sent_ns), _s(one.received_ns), None]
            y += [one.sender, one.receiver, None]
            hover = f"{kind}: {one.sender} → {one.receiver}, {escape(one.text)}"
            text += [hover, hover, ""]
        if x:
            yield {
                "type": "scatter",
                "mode": "lines+markers",
                "name": kind,
                "x": x,
                "y": y,
                "text": text,
                "line": {"color": colour, "width": 1, "dash": "dot" if kind == "high watermark" else "solid"},
                "marker": {
                    "color": colour,
                    "symbol": "arrow",
                    "angleref": "previous",
                    "size": [0, 8, 0] * (len(x) // 3),
                },
                "hovertemplate": "%{text}<br>%{x} s<extra></extra>",
            }


# ---- nodes -----------------------------------------------------------------------------------------------------------


def _roles(
    events: Sequence[TraceRow], nodes: Sequence[str], first_ns: int, last_ns: int, down: Sequence[Downtime]
) -> Iterator[Figure]:
    """A lane's line: thick while the node leads, thin while it follows, as the node itself holds; none while it is
    down."""
    for number, node in enumerate(nodes):
        changes = [event for event in events if event.node == node and event.kind in _ROLES]
        deaths_ns = [one.since_ns for one in down if one.node == node]
        ends = [
            min([next_ns, *(death_ns for death_ns in deaths_ns if death_ns >= event.time_ns)])
            for event, next_ns in zip(changes, [*(one.time_ns for one in changes[1:]), last_ns], strict=False)
        ]
        for kind, width in (("became_leader", 14), ("became_follower", 4)):
            spans = []
            for event, end_ns in zip(changes, ends, strict=True):
                begin, end = max(event.time_ns, first_ns), min(end_ns, last_ns)
                if event.kind == kind and begin < end:
                    spans.append((_s(begin), _s(end), f"{node} {_role(event)} in leader epoch {event.leader_epoch}"))
            if spans:
                colour = NODE_COLOURS[number % len(NODE_COLOURS)]
                yield lane_line(node, spans, colour=colour, width=width, opacity=0.45)


def _role(event: TraceRow) -> str:
    if event.kind == "became_leader":
        return "leads"
    return f"follows b{event.leader}" if event.leader >= 0 else "has no leader"


def _events(drawn: Sequence[TraceRow]) -> Iterator[Figure]:
    for kind, symbol in _SYMBOLS.items():
        chosen = [event for event in drawn if event.kind == kind]
        if chosen:
            yield {
                "type": "scatter",
                "mode": "markers",
                "showlegend": False,
                "x": [_s(event.time_ns) for event in chosen],
                "y": [event.node for event in chosen],
                "marker": {"symbol": symbol, "size": 9, "color": GREY, "line": {"width": 1}},
                "text": [_described(event) for event in chosen],
                "hovertemplate": "%{text}<br>%{x} s<extra></extra>",
            }


def _described(event: TraceRow) -> str:
    words = [f"<b>{escape(event.kind.replace('_', ' '))}</b> {escape(event.node)}"]
    numbers = ("leader_epoch", "partition_epoch", "offset", "log_end", "high_watermark")
    words += [f"{name.replace('_', ' ')} {getattr(event, name)}" for name in numbers if getattr(event, name) >= 0]
    if event.members:
        words.append(f"members {brokers(frozenset(event.members))}")
    words += [
        f"{escape(str(name))} {escape(str(value))}" for name, value in event.details().items() if value not in ([], "")
    ]
    return "<br>".join(words)


def _watermarks(
    events: Sequence[TraceRow], nodes: Sequence[str], first_ns: int, last_ns: int, down: Sequence[Downtime]
) -> Iterator[Figure]:
    """Each node's high watermark, and dotted its log end; neither while it is down."""
    for number, node in enumerate(nodes):
        colour = NODE_COLOURS[number % len(NODE_COLOURS)]
        own = [event for event in events if event.node == node]
        deaths_ns = [one.since_ns for one in down if one.node == node]
        marks = [(one.time_ns, one.high_watermark) for one in own if one.kind.endswith("high_watermark")]
        ends = [(one.time_ns, one.end_after) for one in own if one.kind in ("appended", "truncated", "log_recovered")]
        for name, steps, dash in ((f"{node} HW", marks, "solid"), (f"{node} log end", ends, "dot")):
            within = list(_within(_ended(steps, deaths_ns), first_ns, last_ns))
            if within:
                yield {
                    "type": "scatter",
                    "mode": "lines",
                    "name": name,
                    "showlegend": dash == "solid",
                    "x": [_s(time_ns) for time_ns, _ in within],
                    "y": [value for _, value in within],
                    "yaxis": "y2",
                    "line": {"color": colour, "width": 1.5, "shape": "hv", "dash": dash},
                    "hovertemplate": f"{escape(name)} %{{y}}<br>%{{x}} s<extra></extra>",
                }


def _ended(steps: Sequence[tuple[int, int]], deaths_ns: Sequence[int]) -> list[tuple[int, int | None]]:
    """Steps, each of which holds until the next one or a death; no value holds after it."""
    ended: list[tuple[int, int | None]] = []
    for (time_ns, value), (next_ns, _) in pairwise([*steps, (NEVER, -1)]):
        ended.append((time_ns, value))
        death_ns = min((death_ns for death_ns in deaths_ns if time_ns <= death_ns < next_ns), default=None)
        if death_ns is not None:
            ended += [(death_ns, value), (death_ns, None)]
    return ended


def _within(steps: Sequence[tuple[int, int | None]], first_ns: int, last_ns: int) -> Iterator[tuple[int, int | None]]:
    """The steps that hold in the window, the first and the last cut to it."""
    for (time_ns, value), (next_ns, _) in pairwise([*steps, (last_ns, None)]):
        if time_ns <= last_ns and next_ns >= first_ns:
            yield max(time_ns, first_ns), value
            last = value
    if steps and steps[0][0] <= last_ns:
        yield last_ns, last


# ---- faults and findings ---------------------------------------------------------------------------------------------


def _fault_boxes(
    injected: Sequence[faults.DrawnFault], lanes: Sequence[str], first_ns: int, last_ns: int
) -> Iterator[Figure]:
    for fault in injected:
        for node in fault.nodes:
            if node in lanes:
                place = lanes.index(node)
                yield {
                    "type": "rect",
                    "layer": "below",
                    "xref": "x",
                    "x0": max(fault.began_s, first_ns / 1e9),
                    "x1": min(fault.ended_s, last_ns / 1e9),
                    "yref": "y",
                    "y0": place - 0.45,
                    "y1": place + 0.45,
                    "fillcolor": faults.family_colour(fault.family),
                    "opacity": 0.18,
                    "line": {"width": 0},
                }


def _fault_signs(injected: Sequence[faults.DrawnFault], nodes: Sequence[str], first_ns: int) -> Iterator[Figure]:
    signs = [(fault, node) for fault in injected for node in fault.nodes if node in nodes]
    if signs:
        yield {
            "type": "scatter",
            "mode": "markers",
            "name": "fault",
            "x": [round(max(fault.began_s, first_ns / 1e9), 6) for fault, _ in signs],
            "y": [node for _, node in signs],
            "marker": {
                "symbol": "line-ns-open",
                "size": 22,
                "color": [faults.family_colour(fault.family) for fault, _ in signs],
            },
            "text": [
                f"{escape(fault.note or fault.fault)}<br>{fault.began_s:.3f} – {fault.ended_s:.3f} s"
                for fault, _ in signs
            ],
            "hovertemplate": "%{text}<extra></extra>",
        }


def _findings(story: Story) -> Iterator[Figure]:
    seen = [item for item in story.consequences if item.time_ns >= story.time_ns]
    yield {
        "type": "scatter",
        "mode": "markers",
        "name": "cause, findings",
        "x": [_s(story.time_ns), *(_s(item.time_ns) for item in seen)],
        "y": [story.step.node if story.step is not None else CHECKS, *[CHECKS] * len(seen)],
        "marker": {"symbol": ["x", *["circle"] * len(seen)], "size": [15, *[9] * len(seen)], "color": RED},
        "text": [escape(story.cause), *(escape(f"{item.check}: {item.finding}: {item.text}") for item in seen)],
        "hovertemplate": "%{text}<br>%{x} s<extra></extra>",
    }


def _s(time_ns: int) -> float:
    return round(time_ns / 1e9, 6)
