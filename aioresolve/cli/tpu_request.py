"""What `aioresolve tpu` was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from .arguments import Task

__all__ = ["TPURequest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TPURequest:
    """What was asked for at the command line: the command's parameters by name."""

    names: tuple[str, ...]
    zone: str | None
    project: str | None
    api_version: Literal["v2", "v1"]
    job_name: str
    is_list: bool
    is_probed: bool
    output: str
    task: Task | None
    timeout: float
    worker_timeout: float
    max_concurrency: int
    quiet: bool

    @property
    def asked(self) -> str:
        """What is looked for, in words."""
        return f"TPU {', '.join(self.names)}" if self.names else "the TPU of this environment"
