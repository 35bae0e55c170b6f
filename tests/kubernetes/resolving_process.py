"""A program for tests of memory: resolve in a new process, and print the peak memory."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path

from aioresolve.errors import ResolveError
from aioresolve.kubernetes import KubernetesClusterResolver


def peak_memory() -> float:
    """Return the peak memory of this process, in MB.

    Not `ru_maxrss`: that starts with the memory of the process that started this one.
    """
    found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


async def resolve(kubeconfig: str, method: str, timeout: float) -> str:
    """Return the number of tasks, or the error."""
    resolver = KubernetesClusterResolver({"worker": "app=train"}, kubeconfig=kubeconfig, timeout=timeout)
    try:
        result = await getattr(resolver, method)()
    except ResolveError as error:
        return f"{type(error).__name__}: {error}"
    spec = result if method == "cluster_spec" else result.spec
    return f"{spec.num_tasks('worker')} tasks"


if __name__ == "__main__":
    outcome = asyncio.run(resolve(sys.argv[1], sys.argv[2], float(sys.argv[3])))
    print(json.dumps({"outcome": outcome, "peak": peak_memory()}))
