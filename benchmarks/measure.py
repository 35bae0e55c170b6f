"""Measures peers in turn, A B C A B C ..., each in a separate process, so that noise affects all of them."""

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

__all__ = ["Effort", "Measured", "PeerError", "measure"]

ROOT = Path(__file__).resolve().parent.parent

LIMIT = 900.0
"""Seconds to wait for the reply of a peer."""


class PeerError(Exception):
    """A peer failed, or found other addresses than the other peers."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure.

    Attributes:
        rounds: the number of turns of a fast peer.
        turn: the length of a turn in seconds; a peer that takes longer resolves once.
        budget: the seconds that all turns of a peer take together; a slow peer has fewer turns.
        least: the number of turns of the slowest peer.
    """

    rounds: int = 12
    turn: float = 0.25
    budget: float = 10.0
    least: int = 3

    def is_due(self, number: int, turns: int, wall: Sequence[float]) -> bool:
        """Return whether a peer has a turn in round `number`; the turns of a slow peer are spread out.

        Args:
            number: the round, from 0.
            turns: the number of turns that the peer has had.
            wall: the duration of each of its resolves, in seconds.
        """
        if not wall:
            return True
        wanted = int(self.budget / max(min(wall), self.turn))
        return turns < min(max(wanted, self.least), self.rounds) * (number + 1) / self.rounds


@dataclass(slots=True)
class Measured:
    """What the process of one peer found, and its time and CPU.

    Attributes:
        name: the peer's name in `PEERS`.
        first: its first resolve.
        wall: the duration of each resolve on an open connection, in seconds.
        cpu: the CPU time of the client for each resolve, in seconds.
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
        """The median duration of a resolve, in seconds."""
        return median(self.wall)

    @property
    def cpu_seconds(self) -> float:
        """The median CPU time of a resolve, in seconds."""
        return median(self.cpu)


class Worker:
    """Controls a worker process."""

    def __init__(self, name: str, process: subprocess.Popen[str], errors: Path) -> None:
        self._name = name
        self._process = process
        self._errors = errors
        self.turns = 0
        self.measured = Measured(name, First(**self._read_reply()))

    def take_turn(self, seconds: float) -> None:
        """Make the process resolve for `seconds`, and record the time and CPU."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        turn = Turn(**self._read_reply())
        self.turns += 1
        self.measured.wall += turn.wall
        self.measured.cpu += turn.cpu

    def _read_reply(self) -> Any:
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], LIMIT)
        if not readable:
            raise PeerError(f"{self._name} did not reply within {LIMIT:g} s")
        line = self._process.stdout.readline()
        if not line:
            last = self._errors.read_text(errors="replace").strip().splitlines()[-1:]
            raise PeerError(f"{self._name} failed: {''.join(last) or 'no output'}")
        return json.loads(line)


def measure(
    names: Sequence[str],
    kubeconfig: Path,
    selectors: Sequence[str],
    effort: Effort,
    flags: Sequence[str] = (),
) -> list[Measured]:
    """Measure the peers; a peer that fails is left out, with a line on stderr.

    Args:
        names: the names of the peers in `PEERS`.
        kubeconfig: the kubeconfig of the cluster.
        selectors: the label selectors to resolve.
        effort: how long to measure; no rounds means that only the first resolve is measured.
        flags: options of the worker processes, `--cold` and `--uvloop`.

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
    """Run a worker inside the block; it has already resolved once."""
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
    """Raise an error unless all peers found the same addresses, in any order.

    For a peer that returns the addresses of nodes, only the number is compared if pods have other addresses.
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
        say(f"{other.name} returns the addresses of nodes: only their number was compared")


def say(line: str) -> None:
    """Print a line about the run on stderr."""
    print(line, file=sys.stderr, flush=True)
