"""Which pods, or endpoints of Services, are the tasks of which jobs: the queries and the cache for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from aioresolve.errors import ConfigurationError

from .api.queries import CONTEXT_NAMESPACE
from .auth import NAMESPACE
from .cluster_cache import ClusterCache, MemberStore, PodStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from .api.objects import Pod
    from .api.queries import Query


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The arguments of a `KubernetesClusterResolver` that say which pods are its tasks, once they are valid.

    Attributes:
        jobs: job to its label selectors, or to its Services.
        namespace: the namespace to search; None for all namespaces.
        store_type: the stores for pods or for slices.
    """

    jobs: Mapping[str, Sequence[str]]
    namespace: str | None
    address: str | Callable[[Pod], Any]
    port: int
    order_by: Sequence[str]
    not_running: str
    store_type: type[MemberStore[Any]] = PodStore

    @property
    def reads_slices(self) -> bool:
        """Whether the jobs have Services."""
        return self.store_type is not PodStore

    def queries(self, default: str) -> dict[str, Query[Any]]:
        """Return the query for each selector or Service; `default` is the namespace of the context."""
        namespace = default if self.namespace == CONTEXT_NAMESPACE else self.namespace
        selectors = chain.from_iterable(self.jobs.values())
        return {each: self.store_type.new_query(each, namespace) for each in selectors}

    def new_cache(self, default: str, **options: Any) -> ClusterCache:
        """Return an empty cache for all queries; for the options see `ClusterCache`."""
        queries = self.queries(default)
        return ClusterCache(
            {job: [queries[each] for each in given] for job, given in self.jobs.items()},
            store_type=self.store_type,
            address=self.address,
            port=self.port,
            order_by=self.order_by,
            **options,
        )


def validate_jobs(
    given: Any,
    argument: str = "job_to_label_mapping",
    noun: str = "label selector",
    store_type: type[MemberStore[Any]] = PodStore,
) -> Mapping[str, tuple[str, ...]]:
    """Return the selectors or Services (`noun`) of each job; TensorFlow's default if `given` is None."""
    if given is None:
        return MappingProxyType({"worker": ("job-name=tensorflow",)})
    example = "{'worker': ['job-name=trainer']}" if store_type is PodStore else "{'worker': 'trainer'}"
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
                store_type.new_query(each, None)
            except ValueError as error:
                raise invalid(f"{each!r} is not a {noun} (job {job!r}): {error}") from None
        jobs[job] = tuple(strings)
    return MappingProxyType(jobs)


def validate_namespace(namespace: Any) -> str | None:
    """Return the namespace to search; None for all namespaces."""
    if namespace is None:
        return None
    if isinstance(namespace, str) and (namespace == CONTEXT_NAMESPACE or NAMESPACE.fullmatch(namespace)):
        return namespace
    hint = "Pass a name of at most 63 lower-case letters, digits and '-', CONTEXT_NAMESPACE, or None for all"
    hint += " namespaces. For several, pass a resolver of each to `UnionClusterResolver`."
    raise ConfigurationError(f"{namespace!r} is not a namespace", argument="namespace", hint=hint)
