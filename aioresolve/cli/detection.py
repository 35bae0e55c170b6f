"""The resolver of the cluster that this process is part of, for `aioresolve here` and the sources `here`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from .output.formats import one_line
from .terminal import streams

if TYPE_CHECKING:
    from aioresolve.environment.detection import Finding
    from aioresolve.resolver.base import ClusterResolver

    from .requests import HereRequest


def examine_sources(request: HereRequest) -> tuple[Finding, ...]:
    """Return what was found out about each source, and show progress on stderr."""
    from aioresolve.environment.detection import collect_findings

    from .application import run_async
    from .terminal.progress import run_with_progress

    return run_async(lambda _: run_with_progress(request, collect_findings))


def detect_resolver(request: HereRequest) -> tuple[HereRequest, ClusterResolver]:
    """Return the resolver of the cluster of this process, and the request with the time that is left.

    Raises:
        ConfigurationError: no source was found.
        ResolveError: the source that is used is invalid, or could not be requested.
    """
    from aioresolve.environment.detection import choose

    ends = time.monotonic() + request.timeout
    evidence, new_resolver = choose(examine_sources(request))
    if not request.quiet:
        streams.write_stderr(one_line(f"the cluster is that of {evidence.source}: {evidence.reason}") + "\n")
    return with_time_left(request, ends), new_resolver()


def with_time_left(request: HereRequest, ends: float) -> HereRequest:
    """Return the request with the rest of its total deadline, which is never zero."""
    return replace(request, timeout=max(ends - time.monotonic(), 0.001))
