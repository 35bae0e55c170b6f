"""What every blocking resolver promises: the results of the async one, in threads and after a fork."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from .test_resolvers import PATIENCE, POLL

if TYPE_CHECKING:
    from .sources import Source


def test_results_are_those_of_the_async_resolver(source: Source) -> None:
    resolver = source.resolver(timeout=PATIENCE)
    with source.facade(timeout=PATIENCE) as facade:
        assert facade.cluster_spec() == asyncio.run(resolver.cluster_spec())
        assert facade.cluster_state() == asyncio.run(resolver.cluster_state())
        assert facade.this_task() == asyncio.run(resolver.this_task())
        assert facade.master("worker", 1) == asyncio.run(resolver.master("worker", 1))
        assert facade.wait(2, timeout=PATIENCE, interval=POLL) == facade.cluster_state()
        attributes = ("task_type", "task_id", "rpc_layer", "environment", "timeout")
        assert [getattr(facade, name) for name in attributes] == [
            getattr(resolver, name) for name in attributes
        ]
        assert repr(facade).startswith(f"<sync {type(facade).__name__} of <{type(resolver).__name__} ")
        assert source.secret is None or source.secret not in repr(facade)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_forked_child_has_the_same_cluster(remote: Source) -> None:
    script = f"""{remote.script}
import os, warnings
addresses = {remote.addresses!r}
assert resolver.cluster_spec().job_tasks("worker") == addresses
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: this process has threads
child = os.fork()
assert resolver.cluster_spec().job_tasks("worker") == addresses
assert resolver.cluster_state().spec.job_tasks("worker") == addresses
if child:
    assert os.waitpid(child, 0)[1] == 0
print("child" if child == 0 else "parent")
"""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env={**os.environ, **remote.environ},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (run.stdout.split(), run.stderr) == (["child", "parent"], "")
