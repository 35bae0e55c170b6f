"""Requests for the objects of one kind that a label selector matches."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

import msgspec
from msgspec.structs import replace

from .objects import ObjectList, Pod, WatchEvent, json_decoder

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

CONTEXT_NAMESPACE = "CONTEXT_NAMESPACE"
"""As `namespace=`: the namespace that kubectl would use. That is the one of the kubeconfig's context, or in a
pod without a kubeconfig that of the pod; `default` if neither names one. No namespace can have this name."""


class Resource(Generic[T]):
    """A kind of object that can be listed and watched.

    Args:
        group: the API group, of which the version is `v1`; empty for the core group.
        name: the plural in URLs and RBAC rules, such as `pods`.
        noun: one object in messages, such as `pod`.
        item_type: what an object is decoded as; its name is that of the kind.
        is_namespaced: whether the objects belong to namespaces.

    Attributes:
        decode_event: returns one line of a watch, or raises a ValueError.
        decode_items: returns a JSON array of items of a list, or raises a ValueError.
    """

    def __init__(
        self, group: str, name: str, noun: str, item_type: type[T], *, is_namespaced: bool = True
    ) -> None:
        self.group, self.name, self.noun, self.is_namespaced = group, name, noun, is_namespaced
        self.prefix = f"/apis/{group}/v1" if group else "/api/v1"
        self._list_kind = f"{item_type.__name__}List"
        item: Any = item_type
        event: Any = WatchEvent
        self._decode_list: Callable[[bytes], ObjectList[T]] = json_decoder(ObjectList[item])
        self.decode_event: Callable[[bytes], WatchEvent[T]] = json_decoder(event[item])
        self.decode_items: Callable[[bytes], list[T]] = json_decoder(list[item])

    def decode_page(self, body: bytes) -> ObjectList[T]:
        """Return one page of a list, or raise a ValueError."""
        page = self._decode_list(body)
        if page.kind != self._list_kind:
            raise ValueError(f"its kind is {page.kind[:100]!r}, not {self._list_kind}")
        return page


PODS = Resource("", "pods", "pod", Pod)


class Query(msgspec.Struct, Generic[T], frozen=True):
    """A request for the objects of one resource that a label selector matches.

    Attributes:
        resource: the resource.
        selector: a label selector in the grammar of the API; empty for any labels.
        namespace: the namespace to search; None for all namespaces.
        version: the resourceVersion as of which to list them; empty for the most recent one.
        limit: the maximum number of objects in one page; None for all objects in one response.
        continue_: the token of the page to continue from.
        name: the name of the objects; None for any name.
    """

    resource: ClassVar[Resource[Any]]

    selector: str
    namespace: str | None = None
    version: str = ""
    limit: int | None = None
    continue_: str = ""
    name: str | None = None

    @property
    def fields(self) -> list[str]:
        """The terms of the field selector."""
        return [] if self.name is None else [f"metadata.name={self.name}"]

    @property
    def path(self) -> str:
        """The path of the URL."""
        namespaced = "" if self.namespace is None else f"/namespaces/{self.namespace}"
        return f"{self.resource.prefix}{namespaced}/{self.resource.name}"

    @property
    def parameters(self) -> dict[str, str]:
        """The query of the URL."""
        parameters = {"labelSelector": self.selector}
        if fields := self.fields:
            parameters["fieldSelector"] = ",".join(fields)
        if self.version and not self.continue_:  # a token contains the version of its list
            parameters |= {"resourceVersion": self.version, "resourceVersionMatch": "Exact"}
        if self.limit is not None:
            parameters["limit"] = str(self.limit)
        if self.continue_:
            parameters["continue"] = self.continue_
        return parameters

    @property
    def where(self) -> str:
        """The namespaces as text for messages."""
        if not self.resource.is_namespaced:
            return "the cluster"
        return "all namespaces" if self.namespace is None else f"namespace {self.namespace!r}"

    @property
    def scope(self) -> str:
        """The request as text for messages."""
        return f"selector {self.selector!r} in {self.where}" if self.selector else self.where

    def page(self, limit: int | None, continue_: str) -> Self:
        """Return the request for one page; for all objects in one response if `limit` is None."""
        return replace(self, limit=limit, continue_=continue_)


_REQUIREMENT = re.compile(
    r"(!?)\s*([^\s=!<>(),]+)\s*(?:(!=|==?|[<>])\s*([^\s,]*)|\b(in|notin)\s*\(([^)]*)\))?"
)


class Selector(msgspec.Struct, frozen=True):
    """What a label selector says of labels.

    Attributes:
        keys: the keys that it names.
        required: each key that it requires, with the values that it permits; none if it permits any.
    """

    keys: frozenset[str]
    required: dict[str, frozenset[str]]

    @property
    def values(self) -> dict[str, str]:
        """The value of each key for which it permits only one."""
        return {key: next(iter(values)) for key, values in self.required.items() if len(values) == 1}


@lru_cache(maxsize=256)
def parse_selector(selector: str) -> Selector:
    """Return what `selector` says of labels; other text is left out.

    The grammar: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors
    """
    keys: set[str] = set()
    required: dict[str, frozenset[str]] = {}
    for negation, key, operator, value, set_operator, values in _REQUIREMENT.findall(selector):
        keys.add(key)
        if not (negation or operator in ("!=", "<", ">") or set_operator == "notin"):
            permitted = values.split(",") if set_operator else [value]
            required[key] = frozenset(each.strip() for each in permitted) - {""}
    return Selector(frozenset(keys), required)


RUNNING, NOT_RUNNING = "status.phase=Running", "status.phase!=Running"
NOT_MISSING = "status.phase!=Pending,status.phase!=Failed,status.phase!=Unknown"
"""Running, or ended with success."""


class PodQuery(Query[Pod], frozen=True, kw_only=True):
    """A request for pods.

    Attributes:
        ip: the first IP address of the pods; None for any address.
        phases: the term of the field selector for their phases; empty for any phase.
    """

    resource = PODS

    ip: str | None = None
    phases: str = ""

    @property
    def fields(self) -> list[str]:
        terms = super().fields
        if self.ip is not None:
            terms.append(f"status.podIP={self.ip}")
        if self.phases:
            terms.append(self.phases)
        return terms

    @property
    def scope(self) -> str:
        prefix = "" if self.name is None else f"pod {self.name!r} of "
        if self.ip is not None:
            prefix = f"pod with IP address {self.ip} of "
        suffix = ", phase other than Running" if self.phases == NOT_RUNNING else ""
        return f"{prefix}{super().scope}{suffix}"
