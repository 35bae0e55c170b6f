"""`detect` for blocking code."""

from __future__ import annotations

from functools import partial

from aioresolve.environment.detection import Detection, choose, examine

from . import resolvers
from .loop_thread import get_loop_thread


def detect(*, port: int | None = None, timeout: float = 30.0) -> Detection[resolvers.ClusterResolver]:
    """Return the blocking resolver of the cluster that this process is part of, and why it is that one.

    See `aioresolve.detect` for the sources, their order, and the errors.

    Args:
        port: the port of each task, for the sources that do not have it.
        timeout: the total deadline of the call, in seconds.
    """
    findings = get_loop_thread().run(partial(examine, port=port, timeout=timeout))
    evidence, new_resolver = choose(findings)
    return Detection(
        evidence.source,
        resolvers.facade_of(new_resolver),
        tuple(finding.evidence for finding in findings),
    )
