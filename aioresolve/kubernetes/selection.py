"""The arguments that select pods, or endpoints of Services, and what exists if nothing matches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from aioresolve._core.concurrency import gather
from aioresolve.errors import ConfigurationError
from aioresolve.spec.display import existing_names

from .api.queries import CONTEXT_NAMESPACE, PODS, parse_selector
from .auth import NAMESPACE
from .cluster_cache import MemberStore, PodStore

if TYPE_CHECKING:
    from .api.client import ObjectAPI
    from .api.objects import ObjectMeta
    from .api.queries import Query


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


async def explain_empty(api: ObjectAPI, query: Query[Any], *, may_match: bool) -> str:
    """Return that nothing matches `query`, and what exists in its place; "" if something may match.

    It sends three requests for metadata at most, and with `may_match` another one before them. What the user
    may not list is not mentioned.
    """
    if may_match and await api.metadata(query.path, query.selector) != []:
        return ""
    noun, nothing = "pods", f"no pod matches {query.selector}"
    if query.resource is not PODS:
        noun, nothing = "Services", f"no endpoint belongs to {_service(query)}"
    calls = [partial(api.metadata, query.path)]
    if query.namespace is not None:
        everywhere = replace(query, namespace=None).path
        calls += [
            partial(api.metadata, everywhere, query.selector),
            partial(api.metadata, "/api/v1/namespaces"),
        ]
    there, *others = await gather(calls, limit=len(calls))
    matching, namespaces = others or (None, None)
    elsewhere = {one.namespace for one in matching or ()} - {query.namespace}
    parts = [f"{nothing} in {query.where}"]
    if here := _why_no_member(there or (), query):
        parts = [here]
    elif elsewhere:
        plural = "s" if len(elsewhere) > 1 else ""
        found = "there is one" if noun == "Services" else "it matches pods"
        parts.append(f"{found} in namespace{plural} {existing_names(elsewhere, query.namespace or '')}")
    elif there:
        parts.append(_existing_labels(there, query.selector, noun))
    elif there is not None:
        names = [one.name for one in namespaces or ()]
        is_known = not names or query.namespace in names
        parts.append(f"there are no {noun}" if is_known else "that namespace does not exist")
        if names:
            parts.append(f"namespaces: {existing_names(names, query.namespace or '')}")
    return "; ".join(parts)


def _service(query: Query[Any]) -> str:
    return f"Service {query.selector.partition('=')[2]}"


def _why_no_member(there: Sequence[ObjectMeta], query: Query[Any]) -> str:
    """Return why the objects that match do not count, "" if none matches, or if that is not known."""
    selector = parse_selector(query.selector)
    if selector.keys != selector.required.keys():
        return ""
    matching = [
        one
        for one in there
        if all(
            key in one.labels and (not values or one.labels[key] in values)
            for key, values in selector.required.items()
        )
    ]
    if matching and query.resource is not PODS:
        advice = "check that its selector matches pods, and that they have addresses"
        return f"{_service(query)} in {query.where} has no endpoints: {advice}"
    names = existing_names((one.name for one in matching), "")
    where = f"{query.selector} in {query.where}"
    return f"all pods that match {where} have ended or are being deleted: {names}" if matching else ""


def _existing_labels(there: Sequence[ObjectMeta], selector: str, noun: str) -> str:
    """Return the labels, or the values of a label, that exist in place of the first that matches nothing."""
    for key, wanted in parse_selector(selector).required.items():
        values = {one.labels[key] for one in there if key in one.labels}
        if noun == "Services":
            return f"Services there: {existing_names(values, *wanted)}"
        if not values:
            return f"labels there: {existing_names({key for one in there for key in one.labels}, key)}"
        if wanted and not wanted & values:
            return f"values of {key} there: {existing_names(values, min(wanted))}"
    return f"it excludes the {len(there)} pods there, or they are being deleted or have ended"
