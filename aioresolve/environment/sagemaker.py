"""`SageMakerClusterResolver`: the hosts of an Amazon SageMaker training job.

It follows TensorFlow's `SageMakerClusterResolver`. The variables:
https://github.com/aws/sagemaker-training-toolkit/blob/master/ENVIRONMENT_VARIABLES.md
"""

from __future__ import annotations

import json
import os
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from aioresolve.errors import ConfigurationError, EnvironmentVariableError
from aioresolve.spec import ClusterSpec, ClusterState, host_port

from .base import Description, EnvironmentClusterResolver, reject, shorten

if TYPE_CHECKING:
    from collections.abc import Sequence

HOSTS, CURRENT_HOST = "SM_HOSTS", "SM_CURRENT_HOST"

JOB = "worker"

MAX_LENGTH = 1024 * 1024
"""The longest list of hosts that is parsed, in characters."""


class SageMakerClusterResolver(EnvironmentClusterResolver):
    """Resolves the hosts of an Amazon SageMaker training job: one worker on each.

    >>> os.environ["SM_HOSTS"], os.environ["SM_CURRENT_HOST"] = '["algo-1","algo-2"]', "algo-2"
    >>> await SageMakerClusterResolver().this_task()
    Task(job='worker', index=1, address='algo-2:2223', rank=1, num_tasks=2)

    `$SM_HOSTS` lists the hosts as JSON; `$SM_CURRENT_HOST` is the one on which this process runs. Workers are
    ordered as SageMaker orders them: by the text of their host names. Every call and every property reads the
    variables again.

    Args:
        port: the port of each worker.
        task_type: overrides the job of this process.
        task_id: overrides the task index of this process.
        rpc_layer: the protocol of the workers, such as `"grpc"`.
        environment: the value of the `environment` property.
        timeout: the default total deadline of a call, in seconds.

    Raises:
        ConfigurationError: (a ValueError) an argument is invalid. Calls and properties raise an
            EnvironmentVariableError (a ValueError and RuntimeError) if a variable is missing or malformed.
    """

    def __init__(
        self,
        port: int = 2223,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        environment: str | None = None,
        *,
        timeout: float = 30.0,
    ) -> None:
        super().__init__(
            task_type=task_type,
            task_id=task_id,
            rpc_layer=rpc_layer,
            environment=environment,
            timeout=timeout,
        )
        self._port = _validate_port(port)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of ${HOSTS}>"

    @property
    def known_jobs(self) -> Sequence[str]:
        """The job `worker`."""
        return [JOB]

    def _read(self) -> Description:
        hosts = _parse_hosts(os.environ.get(HOSTS))
        current = os.environ.get(CURRENT_HOST)
        if current and current not in hosts:
            raise reject(
                CURRENT_HOST,
                f"is {shorten(current)}, which is not in ${HOSTS}: {shorten(hosts)}",
                "Correct one of them, or unset both outside of SageMaker.",
            )
        try:
            addresses = [host_port(host, self._port) for host in hosts]
        except ConfigurationError as error:
            raise _malformed(f"is invalid: {error.summary}") from error
        spec = ClusterSpec({JOB: addresses} if addresses else {})
        state = ClusterState.from_spec(spec, observed_at=datetime.now(UTC))
        return Description(state, JOB, hosts.index(current)) if current else Description(state)


def _parse_hosts(text: str | None) -> list[str]:
    if text is None:
        raise reject(
            HOSTS,
            "is not set",
            "Run this in a SageMaker training job, or set it to a JSON array of host names.",
        )
    if not text:
        return []
    if len(text) > MAX_LENGTH:
        raise _malformed(f"is too long: {len(text):,} characters; at most {MAX_LENGTH:,} are read")
    try:
        hosts = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _malformed(f"is not JSON: {error}") from error
    if not isinstance(hosts, list) or not all(isinstance(host, str) and host for host in hosts):
        raise _malformed(f"is not an array of host names: {shorten(text)}")
    if repeated := [host for host, number in Counter(hosts).items() if number > 1]:
        raise _malformed(f"has the host {shorten(repeated[0])} more than once")
    try:
        "".join(hosts).encode()
    except UnicodeError as error:
        raise _malformed(f"is invalid: a host name is not valid Unicode: {error}") from error
    return sorted(hosts)


def _validate_port(port: Any) -> int:
    number = int(port) if isinstance(port, str) and port.isascii() and port.isdigit() else port
    if isinstance(number, bool) or not isinstance(number, int) or not 0 < number < 65536:
        raise ConfigurationError(f"{shorten(port)} is not a port between 1 and 65535", argument="port")
    return number


def _malformed(problem: str) -> EnvironmentVariableError:
    return reject(HOSTS, problem, 'Set it to a JSON array such as ["algo-1", "algo-2"].')
