"""A rendezvous of torchrun on the Kubernetes API server, which no single node has to survive.

    torchrun --rdzv-backend=kubernetes --rdzv-id=JOB --nnodes=2:8 --nproc-per-node=8 train.py

torchrun finds it by its entry point, so the program needs no change. docs/torchrun.md describes the options
and the permissions that it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed.elastic.rendezvous import (  # pyright: ignore[reportMissingImports]
        RendezvousHandler,
        RendezvousParameters,
    )

__all__ = ["create_handler", "handler"]


def create_handler(parameters: RendezvousParameters) -> RendezvousHandler:
    """Return the handler for the options of a torchrun command.

    Raises:
        ValueError: an option is invalid.
        MissingDependencyError: (an ImportError) PyTorch is not installed, or lacks its rendezvous interface.
    """
    from .rendezvous import KubernetesRendezvousHandler

    return KubernetesRendezvousHandler(parameters)


def handler() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """Return `create_handler`: the entry point of torchrun, which calls this when it is imported."""
    return create_handler
