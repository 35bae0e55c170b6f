"""The blocking facade: the resolvers of aioresolve, for code without an event loop.

>>> from aioresolve.sync import KubernetesClusterResolver
>>> resolver = KubernetesClusterResolver({"worker": ["job-name=train"]}, namespace="ml")
>>> resolver.cluster_spec()
ClusterSpec({'worker': ['10.8.0.10:8470', '10.8.0.11:8470']})

Every class has the name, the arguments, the methods and the errors of the async one. Calls may be made from
any thread, many at a time, in a forked child, and inside a running event loop (a notebook), which they block
meanwhile. They run in one loop thread, started by the first of them and ended with the interpreter, and see
the context variables of their caller; Ctrl-C cancels the call it interrupts.

`watch()`, and a fleet's `poll()`, return iterators. They go on in the loop thread until they are closed: by
`contextlib.closing`, with their resolver, or as soon as nobody holds them any more.

The calls of one resolver share its connections. `close()`, the end of `with` and garbage collection close
them, and so does the exit of the interpreter: no `with` is needed.
"""

from .facade import blocking, blocking_iterator
from .fleet import Fleet
from .iteration import BlockingIterator
from .resolvers import (
    ClusterResolver,
    KubernetesClusterResolver,
    SimpleClusterResolver,
    TPUClusterResolver,
    UnionClusterResolver,
)

__all__ = [
    "BlockingIterator",
    "ClusterResolver",
    "Fleet",
    "KubernetesClusterResolver",
    "SimpleClusterResolver",
    "TPUClusterResolver",
    "UnionClusterResolver",
    "blocking",
    "blocking_iterator",
]
