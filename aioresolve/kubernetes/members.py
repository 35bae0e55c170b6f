"""Where members are found: in the pods of label selectors, or in the EndpointSlices of Services."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .api.objects import PodQuery
from .details import Details
from .tasks.task_order import LabelOrdering
from .watch.pod_cache import PodCache

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .api.client import ObjectAPI
    from .api.objects import Query
    from .tasks.controllers import Controllers
    from .watch.cluster_cache import ClusterCache

    Jobs = Mapping[str, Sequence[Sequence[Any]]]


@dataclass(frozen=True, slots=True)
class PodMembers:
    """Members are the pods that match label selectors."""

    address: str | Callable[..., Any]
    port: int
    order_by: str | Sequence[str]

    title = ""

    @property
    def has_rows(self) -> bool:
        """Whether rows of a Table can have the addresses of members, in order."""
        return self.address == "pod_ip" and self.order_by == "name"

    def query(self, selector: str, namespace: str | None) -> Query[Any]:
        """Return the query for a label selector."""
        return PodQuery(selector, namespace)

    def new_cache(
        self, jobs: Jobs, *, allow_gaps: bool, controllers: Controllers | None
    ) -> ClusterCache[Any, Any]:
        """Return an empty cache; `controllers` are the sizes that its observations have."""
        return PodCache(
            jobs,
            address=self.address,
            port=self.port,
            order_by=self.order_by if isinstance(self.order_by, str) else LabelOrdering(self.order_by),
            allow_gaps=allow_gaps,
            controllers=controllers,
        )

    def details(self, api: ObjectAPI, cache: Any, controllers: Controllers | None, **options: Any) -> Details:
        """Return what reads the objects that pods refer to."""
        return Details(api, cache, controllers, **options)


@dataclass(frozen=True, slots=True)
class SliceMembers:
    """Members are the endpoints of Services."""

    address: str
    port: int
    order_by: str

    title = "Services "
    has_rows = False

    def query(self, service: str, namespace: str | None) -> Query[Any]:
        """Return the query for a Service."""
        from .endpoint_slices import SliceQuery

        return SliceQuery.of(service, namespace)

    def new_cache(
        self, jobs: Jobs, *, allow_gaps: bool, controllers: Controllers | None
    ) -> ClusterCache[Any, Any]:
        """Return an empty cache. Slices do not name the controllers of their pods."""
        from .endpoint_slices import SliceCache

        return SliceCache(
            jobs, address=self.address, port=self.port, order_by=self.order_by, allow_gaps=allow_gaps
        )

    def details(self, api: ObjectAPI, cache: Any, controllers: Controllers | None, **options: Any) -> None:
        """Return None: slices refer to nothing."""
