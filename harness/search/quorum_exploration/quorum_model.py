"""The states of the controllers within a scope, and the steps between them.

A state is a tuple of numbers: one for the state of each controller, one for the messages in flight, one for the
history. An event of the shipped node is carried out once for every distinct state of a controller, however many states
of the quorum it is part of.

Every message is lost when it is sent, or is in flight until it arrives. So a message that is never received takes no
room, and no step is needed in which it is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations, permutations
from typing import NamedTuple

from harness.search.quorum_exploration import promises
from harness.search.quorum_exploration.quorum_values import (
    ExploredQuorum,
    Network,
    QuorumHistory,
    QuorumMessage,
    RequestKind,
    VoterState,
)
from harness.search.quorum_exploration.scope import QuorumScope
from harness.search.quorum_exploration.symmetry import RENAMING, in_order
from harness.search.quorum_exploration.voter_steps import VoterOutcome, VoterSteps
from harness.search.state_space.explored_model import Numbers, ValueTables
from harness.search.state_space.interning import Interned, Remembered
from images.broker.raft.state import QuorumState
from images.broker.raft.values import RaftRole


class QuorumAction(NamedTuple):
    """A step in short: its kind, the controller that takes it, and the message that it receives."""

    kind: str
    voter: int
    message: QuorumMessage | None = None


class QuorumStep(NamedTuple):
    """A step, the state after it, and the promise that it breaks."""

    action: QuorumAction
    state: Numbers
    broken: str | None = None


class _Move(NamedTuple):
    """A controller after an event, and the messages that it sends, its answer the last of them."""

    kind: str
    voter: int
    messages: Numbers
    waits: tuple[bool, ...]
    """Whether it goes on to wait for the answer to a fetch: each of what may be."""
    broken: str | None


class QuorumModel:
    """The controllers of a scope."""

    def __init__(self, scope: QuorumScope) -> None:
        self.scope = scope
        self.names = scope.voters
        self.symmetry = scope.symmetry
        self.renaming = RENAMING
        self.voters: Interned[VoterState] = Interned()
        self.networks: Interned[Network] = Interned()
        self.histories: Interned[QuorumHistory] = Interned()
        self.tables = ValueTables(self.voters, self.networks, self.histories)
        self._steps = VoterSteps(scope)
        self._messages: Interned[QuorumMessage] = Interned()
        self._moves = Remembered(self._compute_moves)
        self._arrivals = Remembered(self._compute_arrival)
        self._appended = Remembered(self._compute_appended)
        self._restarted = Remembered(self._compute_restarted)
        self._fetch = Remembered(self._compute_fetch)
        self._in_flight = Remembered(self._compute_in_flight)
        self._without = Remembered(self._compute_without)
        self._with = Remembered(self._compute_with)
        self._cut = Remembered(self._compute_cut)
        self._disconnected = Remembered(self._compute_disconnected)
        self._receivers: Remembered[int, int] = Remembered(lambda it: self._messages.values[it].receiver - 1)
        self._delayed: Remembered[int, bool] = Remembered(
            lambda it: self._messages.values[it].kind in self.scope.in_flight
        )
        self._orders = Remembered(self._compute_orders)
        self._waits = Remembered(self._compute_waits)
        self._committed = Remembered(self._compute_committed)
        self._has_committed = Remembered(self._compute_has_committed)
        self._broken_voter = Remembered(self._compute_broken_voter)
        self._broken_pair = Remembered(self._compute_broken_pair)

    def initial(self) -> Numbers:
        """All controllers have started for the first time."""
        voters = (self.voters.number(self._steps.new(voter)) for voter in self.names)
        return (*voters, self.networks.number(()), self.histories.number(QuorumHistory()))

    def cluster(self, state: Numbers) -> ExploredQuorum:
        """The values that the numbers of a state stand for."""
        *voters, network, history = state
        values = tuple(self.voters.values[voter] for voter in voters)
        return ExploredQuorum(values, self.networks.values[network], self.histories.values[history])

    def steps(self, state: Numbers) -> Iterator[QuorumStep]:
        """Every step from `state` that changes it, once for each state after it."""
        seen = {state}
        for step in self._all_steps(state):
            if step.broken is not None or step.state not in seen:
                seen.add(step.state)
                yield step

    def broken(self, state: Numbers) -> str | None:
        """The promise that does not hold in `state`."""
        *voters, _, history = state
        for voter in voters:
            if (broken := self._broken_voter[voter, history]) is not None:
                return broken
        for pair in combinations(voters, 2):
            if (broken := self._broken_pair[pair]) is not None:
                return broken
        holders = sum(self._has_committed[voter, history] for voter in voters)
        if holders < self.scope.majority:
            return promises.too_few(self.histories.values[history], holders, len(voters))
        return None

    # --- steps --------------------------------------------------------------------------------------------------------

    def _all_steps(self, state: Numbers) -> Iterator[QuorumStep]:
        *voters, network, number = state
        history = self.histories.values[number]
        for place, voter in enumerate(voters):
            for own in self._moves[voter]:
                yield from self._moved(state, place, own)
            if history.appended < self.scope.records:
                yield from self._appends(state, place)
            fetch = self._fetch[voter]
            if fetch is not None and not self._waits[network, place + 1]:
                yield from self._sent(state, (fetch,), QuorumAction("fetch", place + 1), None)
            if history.restarts < self.scope.restarts:
                yield from self._restarts(state, place)
        for message in self._in_flight[network]:
            place = self._receivers[message]
            move = self._arrivals[voters[place], message]
            if move is not None:
                received = (*voters, self._without[network, message], number)
                yield from self._moved(received, place, move, self._messages.values[message])

    def _moved(
        self, state: Numbers, place: int, move: _Move, message: QuorumMessage | None = None
    ) -> Iterator[QuorumStep]:
        """The controller at `place` moves, and sends messages."""
        for after, broken in self._after(state, place, move):
            yield from self._sent(after, move.messages, QuorumAction(move.kind, place + 1, message), broken)

    def _after(self, state: Numbers, place: int, move: _Move) -> list[tuple[Numbers, str | None]]:
        """Each state once the controller at `place` has moved, and the promise that this breaks."""
        networks = {state[-2] if waits else self._cut[state[-2], place + 1]: None for waits in move.waits}
        history, mismatch = self._committed[state[-1], move.voter]
        voters, broken = (*state[:place], move.voter, *state[place + 1 : -2]), move.broken or mismatch
        return [((*voters, network, history), broken) for network in networks]

    def _sent(
        self, state: Numbers, messages: Numbers, action: QuorumAction, broken: str | None
    ) -> Iterator[QuorumStep]:
        """Every state in which these messages are lost, in flight, or have arrived and were answered: one after the
        other in any order, each with all that follows from it."""
        left = [(state, order, broken) for order in self._orders[messages]]
        tried = {(state, order) for state, order, _ in left}
        while left:
            state, messages, broken = left.pop()
            if not messages or broken is not None:
                yield QuorumStep(action, state, broken)
                continue
            message, others = messages[0], messages[1:]
            outcomes: list[tuple[Numbers, Numbers, str | None]] = [(state, others, None)]
            if self._delayed[message]:
                network = self._with[state[-2], message]
                if network is not None:
                    outcomes.append(((*state[:-2], network, state[-1]), others, None))
            else:
                place = self._receivers[message]
                move = self._arrivals[state[place], message]
                if move is not None:
                    outcomes += [
                        (after, (*order, *others), breaks)
                        for after, breaks in self._after(state, place, move)
                        for order in self._orders[move.messages]
                    ]
            for outcome in outcomes:
                if outcome[2] is not None or outcome[:2] not in tried:
                    tried.add(outcome[:2])
                    left.append(outcome)

    def _appends(self, state: Numbers, place: int) -> Iterator[QuorumStep]:
        """A leader appends a change. No other record of its epoch at its offset has the same number."""
        voter = self.voters.values[state[place]]
        if voter.quorum.role is not RaftRole.LEADER:
            return
        history = self.histories.values[state[-1]]
        logs = [self.voters.values[it].records for it in state[:-2]] + [history.committed]
        offset, epoch = len(voter.records), voter.quorum.epoch
        used = {log[offset].number for log in logs if len(log) > offset and log[offset].epoch == epoch}
        number = next(it for it in range(1, len(used) + 2) if it not in used)
        move = self._appended[state[place], number]
        after = self.histories.number(history._replace(appended=history.appended + 1))
        yield from self._moved((*state[:-1], after), place, move)

    def _restarts(self, state: Numbers, place: int) -> Iterator[QuorumStep]:
        """The process of a controller ends, with or without a power loss, and a new one starts."""
        history = self.histories.values[state[-1]]
        network = self._disconnected[state[-2], place + 1]
        for lossy in (False, True) if history.losses < self.scope.losses else (False,):
            after = history._replace(restarts=history.restarts + 1, losses=history.losses + lossy)
            for voter in self._restarted[state[place], lossy]:
                restarted = (*state[:place], voter, *state[place + 1 : -2], network, self.histories.number(after))
                yield QuorumStep(QuorumAction("power_loss" if lossy else "restart", place + 1), restarted)

    # --- remembered events of one controller --------------------------------------------------------------------------

    def _move(self, kind: str, before: VoterState, outcome: VoterOutcome, *, answers: bool = True) -> _Move | None:
        """The move that an outcome is; None where it leaves the scope."""
        old, new = before.quorum, outcome.voter.quorum
        last = self.scope.epochs
        if new.epoch > last or (new.role is RaftRole.PROSPECTIVE and new.epoch == last):
            return None
        messages = [*outcome.sent, *((outcome.answer,) if outcome.answer is not None and answers else ())]
        numbers = [self._messages.number(it) for it in messages]
        return _Move(
            kind,
            self.voters.number(outcome.voter),
            tuple(numbers),
            _waits_on(old, new),
            outcome.broken,
        )

    def _compute_moves(self, number: int) -> list[_Move]:
        """What a controller does unasked: its timeout is over, or it resigns."""
        voter = self.voters.values[number]
        outcomes = dict.fromkeys(self._steps.timeouts(voter), "timeout")
        outcomes.setdefault(self._steps.resigns(voter), "resign")
        moves = (self._move(kind, voter, outcome) for outcome, kind in outcomes.items())
        return [move for move in moves if move is not None and (move.voter != number or move.messages)]

    def _compute_arrival(self, key: tuple[int, int]) -> _Move | None:
        """A message reaches a controller; None if it has no effect, as if it were lost."""
        voter, message = self.voters.values[key[0]], self._messages.values[key[1]]
        outcome = self._steps.arrives(voter, message)
        kind = "receive" if message.answer is not None else "answer"
        move = self._move(kind, voter, outcome, answers=message.awaited)
        if move is None or (move.voter == key[0] and not move.messages and move.broken is None):
            return None
        return move

    def _compute_appended(self, key: tuple[int, int]) -> _Move:
        voter = self.voters.values[key[0]]
        move = self._move("append", voter, self._steps.appends(voter, key[1]))
        assert move is not None
        return move

    def _compute_restarted(self, key: tuple[int, bool]) -> Numbers:
        voters = self._steps.restarts(self.voters.values[key[0]], lossy=key[1])
        return tuple(dict.fromkeys(map(self.voters.number, voters)))

    def _compute_fetch(self, number: int) -> int | None:
        message = self._steps.fetch_of(self.voters.values[number])
        return None if message is None else self._messages.number(message)

    # --- remembered changes of the network ----------------------------------------------------------------------------

    def _compute_in_flight(self, network: int) -> list[int]:
        return [self._messages.number(it) for it in self.networks.values[network]]

    def _compute_without(self, key: tuple[int, int]) -> int:
        return self._network(set(self.networks.values[key[0]]) - {self._messages.values[key[1]]})

    def _compute_with(self, key: tuple[int, int]) -> int | None:
        """The network with this message, None if that is more than may be in flight."""
        network = {*self.networks.values[key[0]], self._messages.values[key[1]]}
        return self._network(network) if len(network) <= self.scope.messages else None

    def _compute_cut(self, key: tuple[int, int]) -> int:
        """The network once a controller waits no longer for the answer to a fetch."""
        return self._network(_unawaited(self.networks.values[key[0]], key[1], fetches_alone=True))

    def _compute_disconnected(self, key: tuple[int, int]) -> int:
        """The network once the process of a controller is gone. Its requests and answers may still arrive."""
        network = self.networks.values[key[0]]
        return self._network(_unawaited([it for it in network if it.receiver != key[1]], key[1], fetches_alone=False))

    def _compute_orders(self, messages: Numbers) -> list[Numbers]:
        """The orders in which messages may arrive; of messages in flight one will do."""
        if all(self._delayed[message] for message in messages):
            return [messages]
        return list(permutations(messages))

    def _compute_waits(self, key: tuple[int, int]) -> bool:
        """Whether a controller waits for the answer to a fetch."""
        own = (it for it in self.networks.values[key[0]] if it.sender == key[1])
        return any(it.kind is RequestKind.FETCH and it.awaited for it in own)

    def _network(self, messages: Iterable[QuorumMessage]) -> int:
        return self.networks.number(in_order(set(messages)))

    # --- remembered promises ------------------------------------------------------------------------------------------

    def _compute_committed(self, key: tuple[int, int]) -> tuple[int, str | None]:
        history, voter = self.histories.values[key[0]], self.voters.values[key[1]]
        if voter.quorum.role is not RaftRole.LEADER:
            return key[0], None
        after = promises.committed_after(history, voter)
        return (key[0], after) if isinstance(after, str) else (self.histories.number(after), None)

    def _compute_has_committed(self, key: tuple[int, int]) -> bool:
        return promises.has_committed(self.voters.values[key[0]], self.histories.values[key[1]])

    def _compute_broken_voter(self, key: tuple[int, int]) -> str | None:
        return promises.broken_by_voter(self.voters.values[key[0]], self.histories.values[key[1]])

    def _compute_broken_pair(self, key: tuple[int, ...]) -> str | None:
        one, other = key
        return promises.broken_by_pair(self.voters.values[one], self.voters.values[other])


def _waits_on(old: QuorumState, new: QuorumState) -> tuple[bool, ...]:
    """Whether a controller that has changed goes on to wait for the answer to a fetch: not for that of another leader;
    and of the same one, which it may stop following for a while, until the connection is lost."""
    if (old.epoch, old.leader) != (new.epoch, new.leader):
        return (False,)
    return (True,) if old.role is new.role else (True, False)


def _unawaited(messages: Iterable[QuorumMessage], sender: int, *, fetches_alone: bool) -> Iterator[QuorumMessage]:
    """The messages once `sender` waits for no answer to its requests, or to its fetches alone."""
    for message in messages:
        if message.sender != sender or (fetches_alone and message.kind is not RequestKind.FETCH):
            yield message
        elif message.answer is None:
            yield message._replace(awaited=False)
