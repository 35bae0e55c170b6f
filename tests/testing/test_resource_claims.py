"""ResourceClaims of the loopback API server."""

from __future__ import annotations

from aioresolve.testing import KubernetesServer, pod, resource_claim

from .client import bearer, fetch

PATH = "/apis/resource.k8s.io/v1/namespaces/ml/resourceclaims"


async def test_claims_can_be_listed_read_and_selected_by_name() -> None:
    async with KubernetesServer([resource_claim(name, "ml") for name in ("a", "b")]) as server:
        listed = await fetch(server, PATH)
        named = await fetch(server, PATH, fieldSelector="metadata.name=b")
        one = await fetch(server, f"{PATH}/a")
        missing = await fetch(server, f"{PATH}/c")
    assert (listed.json["kind"], listed.json["apiVersion"]) == ("ResourceClaimList", "resource.k8s.io/v1")
    assert [each["metadata"]["name"] for each in listed.json["items"]] == ["a", "b"]
    assert [each["metadata"]["name"] for each in named.json["items"]] == ["b"]
    assert one.json["status"]["allocation"]["devices"]["results"][0]["driver"] == "gpu.nvidia.com"
    assert missing.message == 'resourceclaims.resource.k8s.io "c" not found'


async def test_claims_can_be_discovered_but_not_written_by_clients() -> None:
    async with KubernetesServer([resource_claim("a", "ml")]) as server:
        resources = await fetch(server, "/apis/resource.k8s.io/v1")
        created = await fetch(server, PATH, "POST", body=resource_claim("b", "ml"))
        deleted = await fetch(server, f"{PATH}/a", "DELETE")
        server.delete("a", "ml", kind="ResourceClaim")
        listed = await fetch(server, PATH)
    assert [each["name"] for each in resources.json["resources"]] == ["resourceclaims"]
    assert (created.status, deleted.status) == (405, 405)
    assert listed.json["items"] == []


async def test_user_may_be_permitted_pods_but_not_claims() -> None:
    server = KubernetesServer(tokens={"a-token": "reader"}, resources={"reader": ["pods"]})
    async with server:
        denied = await fetch(server, PATH, headers=bearer("a-token"))
    assert denied.message == (
        'resourceclaims.resource.k8s.io is forbidden: User "reader" cannot list resource "resourceclaims" in'
        ' API group "resource.k8s.io" in the namespace "ml"'
    )


def test_pod_with_claims_has_them_in_place_of_limits() -> None:
    spec = pod("a", resource_claims=["gpus"])["spec"]
    assert spec["resourceClaims"] == [{"name": "claim-0", "resourceClaimName": "gpus"}]
    assert spec["containers"][0]["resources"] == {"claims": [{"name": "claim-0"}]}
    assert "resourceClaims" not in pod("b")["spec"]
