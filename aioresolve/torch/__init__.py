"""A rendezvous of torchrun on the Kubernetes API server, which no single node has to survive.

    torchrun --rdzv-backend=kubernetes --rdzv-id=JOB --nnodes=2:8 --nproc-per-node=8 train.py

torchrun finds it by its entry point, so the program needs no change. Each agent runs in a pod of one
workload: an Indexed Job, JobSet, StatefulSet, LeaderWorkerSet or Kubeflow job. Ranks follow the index that
the controller gave the pod, and a pod that is replaced gets its rank back. Pods that are deleted, fail or are
lost with their node end the round at once, without heartbeats. The store of a round is that of its rank 0;
the next round has another one. Outside of pods, a Lease shows that an agent lives.

`--rdzv-endpoint=[NAMESPACE][/NAME]` names the ConfigMap that has the state; by default it is `torchrun-JOB`
in the namespace of the pod. The service account has to be permitted to read pods, and to create and change
that ConfigMap: docs/torchrun.md.

`--rdzv-conf` has these options, all in seconds but the last two:

- `join_timeout` (600): how long to wait for the minimum of nodes.
- `last_call_timeout` (30): how long to wait for more nodes after that.
- `close_timeout` (30): how long closing may take.
- `port`: the port of the store; by default, any that is free.
- `selector`: the label selector of the pods; by default, that of the controller of the pod.
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
        MissingDependencyError: (an ImportError) PyTorch is not installed.
    """
    from .rendezvous import create_handler as create

    return create(parameters)


def handler() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """Return `create_handler`: the entry point of torchrun, which calls this when it is imported."""
    return create_handler
