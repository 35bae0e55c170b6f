"""The pods that the builder makes, compared with one of a real API server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aioresolve.testing import pod
from aioresolve.testing.kubernetes.pods import managed_fields, with_defaults
from aioresolve.testing.kubernetes.statuses import compact_json

# The response of a Kubernetes 1.36 API server for a pod in a crash loop.
SPEC = """{"containers":[{"name":"main","image":"trainer:v1","resources":{"limits":{"google.com/tpu":"4"},\
"requests":{"google.com/tpu":"4"}},"terminationMessagePath":"/dev/termination-log",\
"terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent"}],"restartPolicy":"Never",\
"terminationGracePeriodSeconds":30,"dnsPolicy":"ClusterFirst","nodeName":"node-a","securityContext":{},\
"schedulerName":"default-scheduler","tolerations":[{"key":"node.kubernetes.io/not-ready","operator":"Exists",\
"effect":"NoExecute","tolerationSeconds":300},{"key":"node.kubernetes.io/unreachable","operator":"Exists",\
"effect":"NoExecute","tolerationSeconds":300}],"priority":0,"enableServiceLinks":true,\
"preemptionPolicy":"PreemptLowerPriority"}"""
STATUS = """{"phase":"Running","conditions":[{"type":"Ready","status":"False","lastProbeTime":null,\
"lastTransitionTime":"2026-11-20T00:00:00Z"}],"hostIP":"192.168.0.1","podIP":"10.8.1.2",\
"podIPs":[{"ip":"10.8.1.2"}],"containerStatuses":[{"name":"main","state":{"waiting":{\
"reason":"CrashLoopBackOff","message":"back-off 5m0s"}},"lastState":{},"ready":false,"restartCount":0,\
"image":"trainer:v1","imageID":"sha256:abc","containerID":"containerd://abc","started":false}],\
"qosClass":"BestEffort"}"""
MANAGED_FIELDS = """[{"manager":"Python","operation":"Update","apiVersion":"v1",\
"time":"2026-11-20T15:39:21Z","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:labels":{".":{},"f:job-name":{}}},"f:spec":{\
"f:containers":{"k:{\\"name\\":\\"main\\"}":{".":{},"f:image":{},"f:imagePullPolicy":{},"f:name":{},\
"f:resources":{".":{},"f:limits":{".":{},"f:google.com/tpu":{}},"f:requests":{".":{},"f:google.com/tpu":{}}},\
"f:terminationMessagePath":{},"f:terminationMessagePolicy":{}}},"f:dnsPolicy":{},"f:enableServiceLinks":{},\
"f:nodeName":{},"f:restartPolicy":{},"f:schedulerName":{},"f:securityContext":{},\
"f:terminationGracePeriodSeconds":{}}}},{"manager":"Python","operation":"Update","apiVersion":"v1",\
"time":"2026-11-20T15:39:21Z","fieldsType":"FieldsV1","fieldsV1":{"f:status":{"f:conditions":{".":{},\
"k:{\\"type\\":\\"Ready\\"}":{".":{},"f:lastProbeTime":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}}},\
"f:containerStatuses":{},"f:hostIP":{},"f:phase":{},"f:podIP":{},"f:podIPs":{".":{},"k:{\\"ip\\":\\"10.8.1.2\\"}":\
{".":{},"f:ip":{}}}}},"subresource":"status"}]"""


def crashing_pod() -> dict[str, Any]:
    return pod("crash-0", "ml", labels={"job-name": "crash"}, ip="10.8.1.2", waiting="CrashLoopBackOff")


def test_built_pod_equals_one_of_a_real_server() -> None:
    assert compact_json(crashing_pod()["spec"]).decode() == SPEC
    assert compact_json(crashing_pod()["status"]).decode() == STATUS


def test_managed_fields_equal_those_of_a_real_server() -> None:
    fields = managed_fields(crashing_pod(), "Python", "2026-11-20T15:39:21Z")
    assert compact_json(fields).decode() == MANAGED_FIELDS


def test_finalizers_are_managed_one_by_one() -> None:
    fields = managed_fields(pod("a", finalizers=["example.com/hold"]), "m", "2026-11-20T15:39:21Z")
    assert fields[0]["fieldsV1"]["f:metadata"] == {"f:finalizers": {".": {}, 'v:"example.com/hold"': {}}}


def test_missing_status_has_no_managed_fields() -> None:
    assert len(managed_fields(with_defaults({"metadata": {"name": "a"}}), "m", "now")) == 1


@pytest.mark.parametrize("size", [4096, 8192, 16384])
def test_a_pod_can_be_as_big_as_real_ones(size: int) -> None:
    built = pod("train-0", size=size)
    assert abs(len(compact_json(built)) - size) < 150
    assert managed_fields(built, "aioresolve", "2026-11-20T00:00:00Z") == built["metadata"]["managedFields"]


def test_built_pods_share_no_values() -> None:
    first, second = (
        pod("a", size=4096, containers=("main", "log")),
        pod("a", size=4096, containers=("main", "log")),
    )
    before = json.dumps(second)

    def clear(value: Any) -> None:
        for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
            clear(child)
        if isinstance(value, dict | list):
            value.clear()

    clear(first)
    assert json.dumps(second) == before
    assert json.dumps(pod("a", size=4096, containers=("main", "log"))) == before


def test_index_is_set_as_label_and_annotation() -> None:
    metadata = pod("train-3", index=3)["metadata"]
    key = "batch.kubernetes.io/job-completion-index"
    assert metadata["labels"][key] == metadata["annotations"][key] == "3"


def test_default_address_is_derived_from_the_name() -> None:
    assert pod("a")["status"]["podIP"] == pod("a")["status"]["podIP"] != pod("b")["status"]["podIP"]
    assert "podIP" not in pod("a", phase="Pending")["status"]
    assert "podIPs" not in pod("a", ip=None)["status"]


def test_defaults_equal_those_of_a_real_server() -> None:
    containers = [
        {"name": "a", "image": "host:5000/x"},
        {"name": "b", "image": "x:v1", "imagePullPolicy": "Never"},
    ]
    filled = with_defaults({"metadata": {"name": "a"}, "spec": {"containers": containers}})
    assert [c["imagePullPolicy"] for c in filled["spec"]["containers"]] == ["Always", "Never"]
    assert filled["spec"]["restartPolicy"] == "Always"
    assert filled["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
