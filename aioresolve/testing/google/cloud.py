"""What the loopback Google holds: TPU nodes, queued resources, VMs, their scripts, and who may do what."""

from __future__ import annotations

import copy
import re
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aioresolve.errors import ConfigurationError
from aioresolve.testing.faults import FaultScript

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .requests import GoogleRequest
    from .tokens import Tokens

__all__ = ["Cloud", "Shelf"]

_FULL = re.compile(r"projects/([^/]+)/(?:locations|zones)/([^/]+)/([A-Za-z]+)/([^/]+)")


class Shelf:
    """Resources of one collection by full name, each with the changes that requests are still to see."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._held: dict[str, dict[str, Any]] = {}
        self._scripts: dict[str, deque[Mapping[str, Any]]] = {}

    def put(self, name: str, resource: Mapping[str, Any]) -> None:
        """Write `resource`, in the place of the one of the same name."""
        with self._lock:
            self._held[name] = copy.deepcopy(dict(resource))
            self._scripts.pop(name, None)

    def patch(self, name: str, patch: Mapping[str, Any]) -> dict[str, Any]:
        """The resource once `patch` has been merged into it (RFC 7386: None removes).

        Raises:
            KeyError: there is no such resource.
        """
        with self._lock:
            self._held[name] = merged(self._held[name], patch)
            return copy.deepcopy(self._held[name])

    def script(self, name: str, patches: Iterable[Mapping[str, Any]]) -> None:
        """Let each of the next requests that see the resource merge the next patch into it first.

        Raises:
            KeyError: there is no such resource.
        """
        with self._lock:
            self._held[name]
            self._scripts[name] = deque(patches)

    def delete(self, name: str) -> None:
        """Forget a resource.

        Raises:
            KeyError: there is no such resource.
        """
        with self._lock:
            del self._held[name]
            self._scripts.pop(name, None)

    def get(self, name: str) -> dict[str, Any] | None:
        """The resource as it is, a copy; None where there is none."""
        with self._lock:
            return copy.deepcopy(self._held.get(name))

    def seen(self, name: str) -> dict[str, Any] | None:
        """The resource as a request sees it: the next of its script has happened."""
        with self._lock:
            script = self._scripts.get(name)
            if script:
                self.patch(name, script.popleft())
            return self.get(name)

    @property
    def names(self) -> list[str]:
        """Every full name, in order."""
        with self._lock:
            return sorted(self._held)


@dataclass(slots=True)
class Cloud:
    """One project, what is in it, and how it answers.

    Attributes:
        project: the project's id.
        zone: the zone of whatever is not said to be elsewhere.
        tokens: who is known.
        page_size: items of a page at most.
        etags: whether the APIs know conditional requests.
    """

    project: str
    zone: str
    tokens: Tokens
    page_size: int
    etags: bool
    lock: threading.RLock = field(default_factory=threading.RLock)
    metadata: dict[str, str] = field(default_factory=dict)
    unreachable: list[str] = field(default_factory=list)
    denied: set[str] = field(default_factory=set)
    disabled_services: set[str] = field(default_factory=set)
    instance_groups: dict[str, list[str]] = field(default_factory=dict)
    faults: FaultScript[GoogleRequest] = field(default_factory=FaultScript)
    records: deque[GoogleRequest] = field(default_factory=lambda: deque(maxlen=100_000))
    nodes: Shelf = field(init=False)
    queued_resources: Shelf = field(init=False)
    instances: Shelf = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = Shelf(self.lock)
        self.queued_resources = Shelf(self.lock)
        self.instances = Shelf(self.lock)

    def add(self, resource: Mapping[str, Any]) -> str:
        """Write what `tpu_node`, `queued_resource` or `instance` made, and return its full name.

        Raises:
            ConfigurationError: it is none of these.
        """
        if "networkInterfaces" in resource:
            name = self.full_name(resource["name"], "instances")
            self.instances.put(name, {**resource, "name": name.rpartition("/")[2]})
        elif "tpu" in resource:
            name = self.full_name(resource["name"], "queuedResources")
            parent = name.partition("/queuedResources/")[0]
            specs = [{"parent": parent, **spec} for spec in resource["tpu"].get("nodeSpec", ())]
            self.queued_resources.put(name, {**resource, "name": name, "tpu": {"nodeSpec": specs}})
        elif "networkEndpoints" in resource or "acceleratorType" in resource:
            name = self.full_name(resource["name"], "nodes")
            self.nodes.put(name, {**resource, "name": name})
        else:
            raise ConfigurationError(
                "what was added is no TPU node, queued resource or instance; make it with tpu_node(),"
                " queued_resource() or instance()"
            )
        return name

    def full_name(self, name: str, collection: str) -> str:
        """`projects/P/locations/Z/COLLECTION/NAME` of a name, short or full."""
        if "/" not in name:
            place = "zones" if collection == "instances" else "locations"
            return f"projects/{self.project}/{place}/{self.zone}/{collection}/{name}"
        found = _FULL.fullmatch(name)
        if found is None or found[3] != collection:
            raise ConfigurationError(
                f"{name!r} is no full name of one of {collection}; write it as"
                f" projects/{self.project}/locations/{self.zone}/{collection}/ID"
            )
        return name

    def find(self, name: str) -> tuple[Shelf, str]:
        """The shelf that holds `name`, short or full, and its full name.

        Raises:
            KeyError: there is nothing of that name.
        """
        for shelf, collection in (
            (self.nodes, "nodes"),
            (self.queued_resources, "queuedResources"),
            (self.instances, "instances"),
        ):
            if "/" in name and f"/{collection}/" not in name:
                continue
            full = self.full_name(name, collection)
            if shelf.get(full) is not None:
                return shelf, full
        raise KeyError(name)

    @property
    def projects(self) -> set[str]:
        """Every project that anything is in."""
        names = [*self.nodes.names, *self.queued_resources.names, *self.instances.names]
        return {self.project, *(name.split("/")[1] for name in names)}


def merged(resource: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """`resource` with `patch` merged into it (RFC 7386: None removes); both stay as they are."""
    result = copy.deepcopy(dict(resource))
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict):
            old = result.get(name)
            result[name] = merged(old if isinstance(old, dict) else {}, value)
        else:
            result[name] = copy.deepcopy(value)
    return result
