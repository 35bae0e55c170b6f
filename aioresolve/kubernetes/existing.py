"""What exists where a selector or a Service matches nothing: labels, values, Services and namespaces."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from aioresolve._core.concurrency import gather
from aioresolve.spec.display import existing_names

from .api.queries import parse_selector
from .endpoint_slices import SERVICE_NAME, SliceQuery

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .api.client import ObjectAPI
    from .api.objects import ObjectMeta
    from .api.queries import Query

NAMESPACES = "/api/v1/namespaces"


async def explain_empty(api: ObjectAPI, query: Query[Any]) -> str:
    """Return that nothing matches `query`, and what exists in its place.

    It sends three requests for metadata at most. What the user may not list is not mentioned.
    """
    if isinstance(query, SliceQuery):
        nothing, noun = f"no endpoint belongs to Service {query.service} in {query.where}", "Services"
    else:
        nothing, noun = f"no pod matches {query.selector} in {query.where}", "pods"
    calls = [partial(api.metadata, query.path)]
    if query.namespace is not None:
        everywhere = replace(query, namespace=None).path
        calls += [partial(api.metadata, everywhere, query.selector), partial(api.metadata, NAMESPACES)]
    there, *others = await gather(calls, limit=len(calls))
    elsewhere, namespaces = others or (None, None)
    parts = [nothing]
    if here := _why_no_member(there or (), query):
        parts = [here]
    elif elsewhere:
        matching = {one.namespace for one in elsewhere}
        plural = "s" if len(matching) > 1 else ""
        found = "there is one" if noun == "Services" else "it matches pods"
        parts.append(f"{found} in namespace{plural} {existing_names(matching, query.namespace or '')}")
    elif there:
        parts.append(_existing_labels(there, query.selector))
    elif there is not None:
        names = [one.name for one in namespaces or ()]
        is_known = not names or query.namespace in names or query.namespace is None
        parts.append(f"there are no {noun}" if is_known else "that namespace does not exist")
        if names:
            parts.append(f"namespaces: {existing_names(names, query.namespace or '')}")
    return "; ".join(parts)


def _why_no_member(there: Sequence[ObjectMeta], query: Query[Any]) -> str:
    """Return why the objects that match do not count, "" if none matches, or if that is not known."""
    selector = parse_selector(query.selector)
    if selector.keys != selector.required.keys():
        return ""
    matching = [one for one in there if all(_has_label(one, *each) for each in selector.required.items())]
    if matching and isinstance(query, SliceQuery):
        advice = "check that its selector matches pods, and that they have addresses"
        return f"Service {query.service} in {query.where} has no endpoints: {advice}"
    names = existing_names((one.name for one in matching), "")
    where = f"{query.selector} in {query.where}"
    return f"all pods that match {where} have ended or are being deleted: {names}" if matching else ""


def _has_label(there: ObjectMeta, key: str, values: frozenset[str]) -> bool:
    """Return whether it has the label, with one of the values if there are any."""
    return key in there.labels and (not values or there.labels[key] in values)


def _existing_labels(there: Sequence[ObjectMeta], selector: str) -> str:
    """Return the labels, or the values of a label, that exist in place of the first that matches nothing."""
    for key, wanted in parse_selector(selector).required.items():
        values = {one.labels[key] for one in there if key in one.labels}
        if key == SERVICE_NAME:
            return f"Services there: {existing_names(values, *wanted)}"
        if not values:
            return f"labels there: {existing_names({key for one in there for key in one.labels}, key)}"
        if wanted and not wanted & values:
            return f"values of {key} there: {existing_names(values, min(wanted))}"
    return f"it excludes the {len(there)} pods there, or they are being deleted or have ended"
