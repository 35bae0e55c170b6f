"""The blocking facade: the resolvers of aioresolve, for code without an event loop.

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

`watch()` returns an iterator. It runs in the event loop thread until it is closed: by `contextlib.closing`,
together with its resolver, or when it is garbage-collected.

The calls of one resolver share its connections. `close()`, the end of `with`, garbage collection and the exit
of the interpreter close them, so `with` is optional.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioresolve.sources import BY_RESOLVER

from .facade import BlockingIterator, blocking, blocking_iterator
from .resolvers import ClusterResolver, UnionClusterResolver, detect, facade_class

if TYPE_CHECKING:
    from .resolvers import (
        GCEClusterResolver,
        KubernetesClusterResolver,
        SageMakerClusterResolver,
        SimpleClusterResolver,
        SlurmClusterResolver,
        TFConfigClusterResolver,
        TPUClusterResolver,
    )

__all__ = [
    "BlockingIterator",
    "ClusterResolver",
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
]


def __getattr__(name: str) -> object:
    """Make the class of a source on first use, because that imports its libraries."""
    if name not in BY_RESOLVER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return facade_class(BY_RESOLVER[name].load())


def __dir__() -> list[str]:
    return __all__
