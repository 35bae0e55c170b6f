"""The project behind a server: TPU nodes, queued resources, VMs, their scripted states, and permissions."""

from __future__ import annotations

import copy
import re
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aioresolve.errors import ConfigurationError, Hint
from aioresolve.testing.lifecycle import merge_patch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .tokens import Tokens

_FULL_NAME = re.compile(r"projects/([^/]+)/(?:locations|zones)/([^/]+)/([A-Za-z]+)/([^/]+)")


@dataclass(frozen=True, slots=True)
class GoogleRequest:
    """A request that the server received, without its token, key or assertion.

    Attributes:
        method: `GET`, ...
        path: the path without the query.
        query: parameter name to (last) value.
        service: `metadata`, `oauth2`, `sts`, `iamcredentials`, `tpu`, `compute`; empty for anything else.
        scheme: how the client authenticated: `Bearer` or empty.
        user: the authenticated IAM member; None without a token, or if it was rejected.
        certificate: the common name of the client certificate, if there was one.
        quota_project: the header `X-Goog-User-Project`.
        user_agent: the `User-Agent` header.
        time: when it arrived, in seconds of `time.monotonic()`.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    service: str = ""
    scheme: str = ""
    user: str | None = None
    certificate: str = ""
    quota_project: str = ""
    user_agent: str = ""
    time: float = 0.0


class ResourceStore:
    """The resources of one collection by full name, with the states that later requests will see.

    Methods that need an existing resource raise a KeyError.
    """

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._resources: dict[str, dict[str, Any]] = {}
        self._scripts: dict[str, deque[Mapping[str, Any]]] = {}

    def put(self, name: str, resource: Mapping[str, Any]) -> None:
        """Write `resource`, in place of the resource of the same name if there is one."""
        with self._lock:
            self._resources[name] = copy.deepcopy(dict(resource))
            self._scripts.pop(name, None)

    def patch(self, name: str, patch: Mapping[str, Any]) -> dict[str, Any]:
        """Merge `patch` into a resource (RFC 7386: None removes) and return a copy of it."""
        with self._lock:
            # A copy of the patch: the caller keeps the original and may change it.
            self._resources[name] = merge_patch(self._resources[name], copy.deepcopy(dict(patch)))
            return copy.deepcopy(self._resources[name])

    def script(self, name: str, patches: Iterable[Mapping[str, Any]]) -> None:
        """Merge the next patch into the resource at each of the next requests that read it."""
        with self._lock:
            if name not in self._resources:
                raise KeyError(name)
            self._scripts[name] = deque(patches)

    def delete(self, name: str) -> None:
        """Delete a resource."""
        with self._lock:
            del self._resources[name]
            self._scripts.pop(name, None)

    def get(self, name: str) -> dict[str, Any] | None:
        """Return a copy of a resource, None if it does not exist."""
        with self._lock:
            return copy.deepcopy(self._resources.get(name))

    def read_next(self, name: str) -> dict[str, Any] | None:
        """Apply the next step of the resource's script, if any, and return a copy of the resource."""
        with self._lock:
            script = self._scripts.get(name)
            if script:
                self.patch(name, script.popleft())
            return self.get(name)

    @property
    def names(self) -> list[str]:
        """Every full name, in order."""
        with self._lock:
            return sorted(self._resources)


@dataclass(slots=True)
class Cloud:
    """One project, its resources, and the settings of its APIs; resources with a short name are in `zone`."""

    project: str
    zone: str
    tokens: Tokens
    page_size: int
    etags: bool
    lock: threading.RLock = field(default_factory=threading.RLock)
    metadata: dict[str, str] = field(default_factory=dict)
    unreachable: list[str] = field(default_factory=list)
    denied: set[str] = field(default_factory=set)
    instance_groups: dict[str, list[str]] = field(default_factory=dict)
    unmanaged_groups: set[str] = field(default_factory=set)
    managed_instances: dict[str, dict[str, Any]] = field(default_factory=dict)
    nodes: ResourceStore = field(init=False)
    queued_resources: ResourceStore = field(init=False)
    instances: ResourceStore = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = ResourceStore(self.lock)
        self.queued_resources = ResourceStore(self.lock)
        self.instances = ResourceStore(self.lock)

    def add(self, resource: Mapping[str, Any]) -> str:
        """Write a resource from `tpu_node`, `queued_resource` or `instance`, and return its full name."""
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
                "the value is not a TPU node, queued resource or instance",
                hint="Make it with tpu_node(), queued_resource() or instance().",
            )
        return name

    def full_name(self, name: str, collection: str) -> str:
        """Return `projects/P/locations/Z/COLLECTION/NAME` for a short or full name."""
        if "/" not in name:
            place = "zones" if collection == "instances" else "locations"
            return f"projects/{self.project}/{place}/{self.zone}/{collection}/{name}"
        found = _FULL_NAME.fullmatch(name)
        if found is None or found[3] != collection:
            example = f"projects/{self.project}/locations/{self.zone}/{collection}/ID"
            raise ConfigurationError(
                f"{name!r} is not the full name of one of {collection}",
                hint=Hint("Write it as {example}.", {"example": example}),
            )
        return name

    def group_name(self, name: str) -> str:
        """Return `projects/P/zones/Z/instanceGroups/NAME` for a short or full name of an instance group."""
        if "/" in name:
            return name
        return f"projects/{self.project}/zones/{self.zone}/instanceGroups/{name}"

    def find_group(self, full_name: str) -> list[str] | None:
        """Return the names of the instances of a group; None if it does not exist."""
        with self.lock:
            groups = {self.group_name(name): names for name, names in self.instance_groups.items()}
        return groups.get(full_name)

    def find(self, name: str) -> tuple[ResourceStore, str]:
        """Return the store that contains `name`, short or full, and its full name; or raise a KeyError."""
        for store, collection in (
            (self.nodes, "nodes"),
            (self.queued_resources, "queuedResources"),
            (self.instances, "instances"),
        ):
            if "/" in name and f"/{collection}/" not in name:
                continue
            full = self.full_name(name, collection)
            if store.get(full) is not None:
                return store, full
        raise KeyError(name)

    @property
    def projects(self) -> set[str]:
        """The projects that have a resource, and the server's own."""
        names = [*self.nodes.names, *self.queued_resources.names, *self.instances.names]
        return {self.project, *(name.split("/")[1] for name in names)}
