"""What `aioresolve kubernetes` was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .arguments import selectors_by_job, typed

if TYPE_CHECKING:
    from .arguments import Task

__all__ = ["WITH_IDENTITIES", "Request"]

WITH_IDENTITIES = frozenset({"wide", "json", "yaml"})
"""The outputs that tell who a pod is; the others tell addresses, for which the server is asked for less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked for at the command line: the command's parameters by name."""

    selectors: tuple[tuple[str, str], ...]
    namespaces: tuple[str, ...]
    all_namespaces: bool
    context: str | None
    kubeconfigs: tuple[str, ...]
    port: int
    address: str
    order_by: Literal["name", "index"]
    not_running: Literal["raise", "skip"]
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
