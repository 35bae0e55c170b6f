"""Peers in turn, A B C A B C ..., each in a process of its own: what disturbs one disturbs all."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.peers import PEERS, Peer
from benchmarks.worker import First, Turn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Effort", "Measured", "PeerError", "measured"]

ROOT = Path(__file__).resolve().parent.parent

LIMIT = 900.0
"""Seconds after which a peer that says nothing is given up."""


class PeerError(Exception):
    """A peer failed, or answered something else than the others."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure.

    Attributes:
        rounds: how many turns a fast peer has.
        turn: seconds of a turn; a peer that takes longer resolves once.
        budget: seconds that a peer's turns take together; a slow peer has fewer of them.
        least: how many turns the slowest peer has.
    """

    rounds: int = 12
    turn: float = 0.25
    budget: float = 10.0
    least: int = 3

    def is_due(self, number: int, turns: int, wall: Sequence[float]) -> bool:
        """Return whether it is a peer's turn in round `number`: a slow one's are spread over the rounds.

        Args:
            number: the round, from 0.
            turns: how many turns the peer has had.
            wall: the seconds of each of its resolves.
        """
        if not wall:
            return True
        wanted = int(self.budget / max(min(wall), self.turn))
        return turns < min(max(wanted, self.least), self.rounds) * (number + 1) / self.rounds


@dataclass(slots=True)
class Measured:
    """What one peer's process found and took.

    Attributes:
        name: the peer's name in `PEERS`.
        first: its first resolve.
        wall: seconds of each resolve on a warm connection.
        cpu: seconds of the client's CPU of each.
    """

    name: str
    first: First
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def peer(self) -> Peer:
        return PEERS[self.name]

    @property
    def seconds(self) -> float:
        """The median resolve."""
        return median(self.wall)

    @property
    def cpu_seconds(self) -> float:
        """The CPU of the median resolve."""
        return median(self.cpu)


class Worker:
    """The driver's end of a worker process."""

    def __init__(self, name: str, process: subprocess.Popen[str], errors: Path) -> None:
        self._name = name
        self._process = process
        self._errors = errors
        self.turns = 0
        self.measured = Measured(name, First(**self._said()))

    def take_turn(self, seconds: float) -> None:
        """Let it resolve for so many seconds, and keep what that took."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        turn = Turn(**self._said())
        self.turns += 1
        self.measured.wall += turn.wall
        self.measured.cpu += turn.cpu

    def _said(self) -> Any:
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], LIMIT)
        if not readable:
            raise PeerError(f"{self._name} gave no answer within {LIMIT:g} s")
        line = self._process.stdout.readline()
        if not line:
            last = self._errors.read_text(errors="replace").strip().splitlines()[-1:]
            raise PeerError(f"{self._name} failed: {''.join(last) or 'it said nothing'}")
        return json.loads(line)


def measured(
    names: Sequence[str],
    kubeconfig: Path,
    selectors: Sequence[str],
    effort: Effort,
    flags: Sequence[str] = (),
) -> list[Measured]:
    """Return what each peer took; a peer that fails is left out with a line on stderr.

    Args:
        names: the peers, by their names in `PEERS`.
        kubeconfig: of the cluster to ask.
        selectors: what to ask for.
        effort: how long to measure; no rounds for first resolves alone.
        flags: the workers' own options, `--cold` and `--uvloop`.

    Raises:
        PeerError: the peers did not find the same addresses, or none is left.
    """
    with ExitStack() as stack:
        workers: list[Worker] = []
        for name in names:
            try:
                workers.append(stack.enter_context(running_worker(name, kubeconfig, selectors, flags)))
            except PeerError as error:
                say(f"left out: {error}")
        check_equal([worker.measured for worker in workers])
        for number in range(effort.rounds):
            for worker in list(workers):
                if not effort.is_due(number, worker.turns, worker.measured.wall):
                    continue
                try:
                    worker.take_turn(effort.turn)
                except PeerError as error:
                    say(f"left out: {error}")
                    workers.remove(worker)
        if not workers:
            raise PeerError("every peer failed")
        return [worker.measured for worker in workers]


@contextmanager
def running_worker(
    name: str, kubeconfig: Path, selectors: Sequence[str], flags: Sequence[str]
) -> Iterator[Worker]:
    """Yield a worker that has resolved once; it ends with the block."""
    command = [sys.executable, "-m", "benchmarks.worker", name, str(kubeconfig), *selectors, *flags]
    with (
        tempfile.NamedTemporaryFile(prefix=f"{name}-", suffix=".log") as errors,
        subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        try:
            yield Worker(name, process, Path(errors.name))
        finally:
            process.kill()


def check_equal(found: Sequence[Measured]) -> None:
    """Raise unless every peer found the same addresses; their order is not compared, as it is a peer's own.

    Of a peer that answers with nodes' addresses the number alone is compared, where pods have their own.
    """
    if not found:
        raise PeerError("no peer is left to measure")
    reference = found[0]
    for other in found[1:]:
        if other.first.count != reference.first.count:
            raise PeerError(
                f"{other.name} found {other.first.count} addresses, {reference.name} {reference.first.count}"
            )
        if other.first.digest == reference.first.digest:
            continue
        if not other.peer.by_host_ip:
            raise PeerError(f"{other.name} found other addresses than {reference.name}")
        say(f"{other.name} answers with the nodes' addresses: only their number was compared")


def say(line: str) -> None:
    """Print a line about the run itself, on stderr."""
    print(line, file=sys.stderr, flush=True)
