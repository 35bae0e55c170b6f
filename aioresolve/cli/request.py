"""What the commands were asked for: their parameters by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .arguments import selectors_by_job, typed

if TYPE_CHECKING:
    from .arguments import Task

__all__ = ["WITH_IDENTITIES", "PodRequest", "PollRequest", "TPURequest"]

WITH_IDENTITIES = frozenset({"wide", "json", "yaml"})
"""The outputs that tell who a pod is; the others tell addresses, for which the server is asked for less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequest:
    """Pods, to be resolved, watched or waited for."""

    selectors: tuple[tuple[str, str], ...]
    namespaces: tuple[str, ...]
    all_namespaces: bool
    context: str | None
    kubeconfigs: tuple[str, ...]
    port: int
    address: str
    order_by: Literal["name", "index"]
    not_running: Literal["raise", "skip"] = "raise"
    output: str
    task: Task | None
    timeout: float
    max_concurrency: int
    quiet: bool

    @property
    def jobs(self) -> dict[str, list[str]]:
        """Each job's selectors."""
        return selectors_by_job(self.selectors)

    @property
    def asked(self) -> str:
        """What is looked for, as it was typed."""
        return typed(self.selectors)


@dataclass(frozen=True, slots=True, kw_only=True)
class TPURequest:
    """Cloud TPUs, to be resolved, listed, watched or waited for."""

    names: tuple[str, ...]
    zone: str | None
    project: str | None
    api_version: Literal["v2", "v1"]
    job_name: str
    is_list: bool = False
    is_probed: bool = False
    output: str
    task: Task | None
    timeout: float
    worker_timeout: float = 5.0
    max_concurrency: int = 256
    quiet: bool

    @property
    def asked(self) -> str:
        """What is looked for, in words."""
        return f"TPU {', '.join(self.names)}" if self.names else "the TPU of this environment"


@dataclass(frozen=True, slots=True, kw_only=True)
class PollRequest:
    """A fleet, to be polled or watched; what is None is left to its file."""

    file: str
    is_once: bool
    is_watched: bool
    interval: float | None
    timeout: float | None
    max_concurrency: int | None
    shard: int | tuple[int, int] | None
    output: str
    quiet: bool
