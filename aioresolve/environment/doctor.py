"""`doctor`: checks of a resolver one by one, or of this machine, each with a result and a remedy."""

from __future__ import annotations

import platform
import ssl
from contextlib import nullcontext, suppress
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from aioresolve._core.deadline import Progress
from aioresolve._core.validation import validate_seconds
from aioresolve._version import __version__
from aioresolve.errors import InvalidClusterError
from aioresolve.resolver.base import ClusterResolver
from aioresolve.resolver.checks import Checks, Finding, PlannedCheck, run_checks

if TYPE_CHECKING:
    from aioresolve.resolver.checks import Check

PACKAGES = (
    *("aiohttp", "anyio", "click", "google-auth", "grpcio", "msgspec", "opentelemetry-api", "protobuf"),
    *("pyyaml", "rich", "tensorflow", "trustme"),
)
"""The packages that may change how aioresolve works."""


async def doctor(
    resolver: ClusterResolver | None = None,
    *,
    timeout: float = 30.0,
    check_timeout: float = 10.0,
    progress: Progress | None = None,
) -> tuple[Check, ...]:
    """Return the result of each check of a resolver: what was found, and what to change if it is wrong.

    >>> from aioresolve import ClusterSpec, SimpleClusterResolver
    >>> checks = await aioresolve.doctor(SimpleClusterResolver(ClusterSpec({"worker": ["127.0.0.1:1"]})))
    >>> [(check.name, check.result) for check in checks]
    [('tasks', 'ok'), ('addresses', 'failed'), ('this task', 'ok')]

    For Kubernetes it checks the configuration, the API server, the credentials and the permissions; for TPUs
    where they are named, the credentials and each TPU; for every resolver which tasks are missing and why, a
    TCP connection to each task, and which task this process is.
    Checks that do not need one another run concurrently. Failures are results, not exceptions.

    Args:
        resolver: the resolver to check. Without one, this machine is checked: versions, and which cluster
            this process is part of.
        timeout: the deadline of all checks, in seconds.
        check_timeout: the deadline of each check, in seconds.
        progress: is updated with each check, if given.

    Raises:
        ConfigurationError: (a ValueError) an argument is invalid.
        InvalidClusterError: (a TypeError) `resolver` is not an async resolver.
    """
    if resolver is not None and not isinstance(resolver, ClusterResolver):
        raise InvalidClusterError(
            f"doctor takes an async resolver; got {type(resolver).__name__}",
            hint="Pass a resolver of `aioresolve`, not of `aioresolve.sync`.",
        )
    timeout = validate_seconds("timeout", timeout)
    check_timeout = validate_seconds("check_timeout", check_timeout)
    async with nullcontext(MACHINE_CHECKS) if resolver is None else resolver._checks() as plan:
        checks = await run_checks(
            plan, timeout=timeout, check_timeout=check_timeout, progress=progress or Progress()
        )
    return Checks(checks)


# The checks of this machine. Without a resolver nothing is required, so that nothing that is absent is wrong.


async def _check_versions(_: Progress) -> Finding:
    """Report the versions of aioresolve, Python, OpenSSL and the packages that may matter."""
    found = [
        f"aioresolve {__version__}",
        f"{platform.python_implementation()} {platform.python_version()} on {platform.platform()}",
        ssl.OPENSSL_VERSION,
    ]
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found.append(f"{package} {version(package)}")
    return Finding(", ".join(found))


async def _check_this_process(progress: Progress) -> Finding:
    from .detection import collect_evidence, decisive

    used = decisive(await collect_evidence(progress))
    if used is None:
        return Finding("nothing describes the cluster of this process")
    if used.error is not None:
        raise used.error
    return Finding(f"is part of the cluster of {used.source}: {used.reason}")


MACHINE_CHECKS = (
    PlannedCheck("versions", _check_versions),
    PlannedCheck("this process", _check_this_process),
)
