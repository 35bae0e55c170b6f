"""Which pods, or endpoints of Services, are the tasks of which jobs: the queries and the cache for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from aioresolve.errors import ConfigurationError

from .api.queries import CONTEXT_NAMESPACE, PodQuery
from .auth import NAMESPACE
from .cluster_cache import PodCache

if TYPE_CHECKING:
    from collections.abc import Callable

    from .api.objects import Pod
    from .api.queries import Query
    from .cluster_cache import ClusterCache


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The arguments of a `KubernetesClusterResolver` that say which pods are its tasks, once they are valid.

    Attributes:
        jobs: job to its label selectors, or to its Services.
        reads_slices: whether they are Services.
        new_query: returns the query for one of them in a namespace, or in all.
        cache_type: the cache for the objects of these queries.
    """

    jobs: Mapping[str, Sequence[str]]
    namespaces: Sequence[str | None]
    address: str | Callable[[Pod], Any]
    port: int
    order_by: Sequence[str]
    not_running: str
    reads_slices: bool = False
    new_query: Callable[[str, str | None], Query[Any]] = PodQuery
    cache_type: Callable[..., ClusterCache[Any, Any]] = PodCache

    def query(self, selector: str, namespace: str | None, default: str) -> Query[Any]:
        """Return the query in one of the namespaces; `default` is that of the context."""
        return self.new_query(selector, default if namespace == CONTEXT_NAMESPACE else namespace)

    def queries(self, selector: str, default: str) -> list[Query[Any]]:
        """Return the query for each distinct namespace."""
        # Another namespace of the list may be that of the context.
        return list(dict.fromkeys(self.query(selector, each, default) for each in self.namespaces))

    def all_queries(self, default: str) -> list[Query[Any]]:
        """Return the query for each distinct selector and namespace."""
        selectors = [selector for selectors in self.jobs.values() for selector in selectors]
        return list(dict.fromkeys(query for one in selectors for query in self.queries(one, default)))

    def new_cache(self, default: str, **options: Any) -> ClusterCache[Any, Any]:
        """Return an empty cache for all queries; for the options see `ClusterCache`."""
        return self.cache_type(
            {job: [self.queries(one, default) for one in given] for job, given in self.jobs.items()},
            address=self.address,
            port=self.port,
            order_by=self.order_by,
            **options,
        )


def validate_jobs(
    given: Any,
    argument: str = "job_to_label_mapping",
    noun: str = "label selector",
    example: str = "{'worker': ['job-name=trainer']}",
    check: Callable[[str, None], object] = PodQuery,
) -> Mapping[str, tuple[str, ...]]:
    """Return the selectors or Services (`noun`) of each job; TensorFlow's default if `given` is None.

    `check` raises a ValueError for a string that is not one.
    """
    if given is None:
        return MappingProxyType({"worker": ("job-name=tensorflow",)})
    invalid = partial(ConfigurationError, argument=argument, hint=f"Pass a mapping such as `{example}`.")
    # TensorFlow also replaces an empty mapping, and so returns pods that the caller did not select.
    if not isinstance(given, Mapping) or not given:
        kind = "an empty mapping" if isinstance(given, Mapping) else f"a {type(given).__name__}"
        raise invalid(f"{kind} is not a mapping of job names to {noun}s")
    jobs: dict[str, tuple[str, ...]] = {}
    for job, some in given.items():
        if not isinstance(job, str) or not job:
            raise invalid(f"{job!r} is not a valid job name")
        strings = [some] if isinstance(some, str) else some
        if not isinstance(strings, Sequence) or not strings or not all(isinstance(s, str) for s in strings):
            raise invalid(f"{some!r} is not a list of {noun}s (job {job!r})")
        for each in strings:
            try:
                each.encode()  # a URL would be built without surrogates, and the rest may match other pods
                check(each, None)
            except ValueError as error:
                raise invalid(f"{each!r} is not a {noun} (job {job!r}): {error}") from None
        jobs[job] = tuple(strings)
    return MappingProxyType(jobs)


def validate_namespaces(namespace: Any) -> tuple[str | None, ...]:
    """Return the distinct namespaces to search; `(None,)` for all namespaces."""
    if namespace is None:
        return (None,)
    invalid = partial(
        ConfigurationError,
        argument="namespace",
        hint="Pass a name of at most 63 lower-case letters, digits and '-', a list of names,"
        " CONTEXT_NAMESPACE, or None for all namespaces.",
    )
    given = [namespace] if isinstance(namespace, str) else namespace
    if not isinstance(given, Sequence) or not given:
        raise invalid(f"{namespace!r} is not a namespace or a list of them")
    for name in given:
        if not isinstance(name, str) or not (name == CONTEXT_NAMESPACE or NAMESPACE.fullmatch(name)):
            raise invalid(f"{name!r} is not a valid namespace name")
    return tuple(dict.fromkeys(given))
