"""`detect` for blocking code."""

from __future__ import annotations

from functools import partial

from aioresolve.environment.detection import Detection, choose, examine
from aioresolve.errors import ResolveError

from . import resolvers
from .loop_thread import get_loop_thread, without_internal_frames


def detect(*, port: int | None = None, timeout: float = 30.0) -> Detection[resolvers.ClusterResolver]:
    """Return the blocking resolver of the cluster that this process is part of, and why it is that one.

    See `aioresolve.detect` for the sources, their order, and the errors.

    Args:
        port: the port of each task, for the sources that do not have it.
        timeout: the total deadline of the call, in seconds.
    """
    try:
        findings = get_loop_thread().run(partial(examine, port=port, timeout=timeout))
        evidence, new_resolver = choose(findings)
    except ResolveError as error:
        raise without_internal_frames(error)  # noqa: B904 - it is the same error
    return Detection(
        evidence.source,
        resolvers.facade_of(new_resolver()),
        tuple(finding.evidence for finding in findings),
    )
