"""What is asked of the API server: one selector in one scope."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["PodQuery"]


@dataclass(frozen=True, slots=True)
class PodQuery:
    """A question for pods.

    Attributes:
        selector: a label selector in the API's own grammar.
        namespace: the namespace to look in; None for all of them.
        name: the one pod name to look for; every name where None.
        limit: how many pods a page holds at most; all in one answer where None.
        continue_: the token of the page to continue from.
    """

    selector: str
    namespace: str | None = None
    name: str | None = None
    limit: int | None = None
    continue_: str = ""

    @property
    def path(self) -> str:
        """The URL's path."""
        return "/api/v1/pods" if self.namespace is None else f"/api/v1/namespaces/{self.namespace}/pods"

    @property
    def parameters(self) -> dict[str, str]:
        """The URL's query. `resourceVersion` stays unset: the answer is as fresh as can be."""
        parameters = {"labelSelector": self.selector}
        if self.name is not None:
            parameters["fieldSelector"] = f"metadata.name={self.name}"
        if self.limit is not None:
            parameters["limit"] = str(self.limit)
        if self.continue_:
            parameters["continue"] = self.continue_
        return parameters

    @property
    def where(self) -> str:
        """The scope's namespaces, in words."""
        return "all namespaces" if self.namespace is None else f"namespace {self.namespace!r}"

    @property
    def scope(self) -> str:
        """The question, in words for messages."""
        named = "" if self.name is None else f"pod {self.name!r} of "
        return f"{named}selector {self.selector!r} in {self.where}"

    def named(self, name: str) -> PodQuery:
        """Return the same question for the pods of one name."""
        return replace(self, name=name)

    def page(self, limit: int, continue_: str) -> PodQuery:
        """Return the same question for one page."""
        return replace(self, limit=limit, continue_=continue_)
