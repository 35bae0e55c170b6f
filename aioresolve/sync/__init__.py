"""The blocking facade: the resolvers and the fleet of aioresolve, for code without an event loop.

>>> from aioresolve.sync import KubernetesClusterResolver
>>> resolver = KubernetesClusterResolver({"worker": ["job-name=train"]}, namespace="ml")
>>> resolver.cluster_spec()
ClusterSpec({'worker': ['10.8.0.10:8470', '10.8.0.11:8470']})

Each class has the name, arguments, methods and errors of the async one. Calls can be made from any thread,
concurrently, in a forked child, and inside a running event loop (a notebook), which they block. They run in
one event loop thread, which the first call starts and the exit of the interpreter ends, and see the context
variables of their caller. Ctrl-C cancels the call that it interrupts.

gRPC does not survive a fork: in a child that was forked after its parent had probed workers, the calls that
probe workers raise a ConfigurationError.

`watch()`, and `poll()` of a fleet, return iterators. They run in the event loop thread until they are closed:
by `contextlib.closing`, together with their resolver, or when they are garbage-collected.

The calls of one resolver share its connections. `close()`, the end of `with`, garbage collection and the exit
of the interpreter close them, so `with` is optional.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from .facade import blocking, blocking_iterator
from .fleet import Fleet
from .functions import detect, doctor
from .iteration import BlockingIterator
from .resolvers import (
    ClusterResolver,
    SageMakerClusterResolver,
    SimpleClusterResolver,
    SlurmClusterResolver,
    TFConfigClusterResolver,
    TPUClusterResolver,
    UnionClusterResolver,
)

if TYPE_CHECKING:
    from .cloud_resolvers import GCEClusterResolver, KubernetesClusterResolver

__all__ = [
    "BlockingIterator",
    "ClusterResolver",
    "Fleet",
    "GCEClusterResolver",
    "KubernetesClusterResolver",
    "SageMakerClusterResolver",
    "SimpleClusterResolver",
    "SlurmClusterResolver",
    "TFConfigClusterResolver",
    "TPUClusterResolver",
    "UnionClusterResolver",
    "blocking",
    "blocking_iterator",
    "detect",
    "doctor",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(".cloud_resolvers", __name__), name)


def __dir__() -> list[str]:
    return __all__
