"""`detect` and `doctor` for blocking code."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aioresolve.environment.detection import Detection, choose, examine
from aioresolve.errors import InvalidClusterError

from .loop_thread import get_loop_thread
from .resolvers import ClusterResolver, facade_of

if TYPE_CHECKING:
    from aioresolve._core.deadline import Progress
    from aioresolve.resolver.checks import Check


def detect(*, port: int | None = None, timeout: float = 30.0) -> Detection[ClusterResolver]:
    """Return the blocking resolver of the cluster that this process is part of, and why it is that one.

    See `aioresolve.detect` for the sources, their order, and the errors.

    Args:
        port: the port of each task, for the sources that do not have it.
        timeout: the total deadline of the call, in seconds.
    """
    findings = get_loop_thread().run(partial(examine, port=port, timeout=timeout))
    evidence, new_resolver = choose(findings)
    return Detection(
        evidence.source, facade_of(new_resolver()), tuple(finding.evidence for finding in findings)
    )


def doctor(
    resolver: ClusterResolver | None = None,
    *,
    timeout: float = 30.0,
    check_timeout: float = 10.0,
    progress: Progress | None = None,
) -> tuple[Check, ...]:
    """Return the result of each check of a resolver, as `aioresolve.doctor` does. Blocks.

    Args:
        resolver: a resolver of `aioresolve.sync`; without one, this machine is checked.
        timeout: the deadline of all checks, in seconds.
        check_timeout: the deadline of each check, in seconds.
        progress: is updated with each check, if given.

    Raises:
        ConfigurationError: (a ValueError) an argument is invalid.
        InvalidClusterError: (a TypeError) `resolver` is not a resolver of `aioresolve.sync`.
    """
    # Imported here because few programs need it.
    from aioresolve.environment import doctor as checks

    if resolver is not None and not isinstance(resolver, ClusterResolver):
        raise InvalidClusterError(
            f"aioresolve.sync.doctor takes a resolver of aioresolve.sync; got {type(resolver).__name__}",
            hint="Wrap an async resolver in aioresolve.sync.ClusterResolver.",
        )
    call = partial(checks.doctor, timeout=timeout, check_timeout=check_timeout, progress=progress)

    async def check() -> tuple[Check, ...]:
        if resolver is None:
            return await call()
        async with resolver._shared.acquire() as entered:
            return await call(entered)

    return get_loop_thread().run(check)
