"""Wrong arguments are told by their name, before anything is asked of anybody."""

from __future__ import annotations

from typing import Any

import pytest

from aioresolve import ConfigurationError, KubernetesClusterResolver
from aioresolve.kubernetes.query import checked_jobs, checked_namespaces


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"job_to_label_mapping": ["app=a"]}, "job_to_label_mapping is a list"),
        ({"job_to_label_mapping": {1: ["app=a"]}}, "the job name 1"),
        ({"job_to_label_mapping": {"": ["app=a"]}}, "the job name ''"),
        ({"job_to_label_mapping": {"worker": []}}, r"\['worker'\] is \[\]"),
        ({"job_to_label_mapping": {"worker": [1]}}, r"\['worker'\] is \[1\]"),
        ({"job_to_label_mapping": {"worker": None}}, r"\['worker'\] is None"),
        ({"tf_server_port": 0}, "tf_server_port=0"),
        ({"tf_server_port": 65536}, "tf_server_port=65536"),
        ({"tf_server_port": "8470"}, "tf_server_port='8470'"),
        ({"namespace": []}, r"namespace=\[\]"),
        ({"namespace": 7}, "namespace=7"),
        ({"namespace": "../secrets"}, "namespace='../secrets'"),
        ({"namespace": "Upper"}, "namespace='Upper'"),
        ({"namespace": ["ml", ""]}, "namespace=''"),
        ({"address": "external_ip"}, "address='external_ip': give one of 'pod_ip'"),
        ({"order_by": "age"}, "order_by='age'"),
        ({"not_running": "ignore"}, "not_running='ignore'"),
        ({"max_concurrency": 0}, "max_concurrency=0"),
        ({"max_concurrency": True}, "max_concurrency=True"),
        ({"timeout": 0}, "timeout=0"),
        ({"timeout": None}, "timeout=None"),
        ({"executable_location": "MOON"}, "MOON"),
        ({"override_client": object()}, "override_client is a builtins.object"),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint) as caught:
        KubernetesClusterResolver(**arguments)
    assert isinstance(caught.value, ValueError)


def test_no_mapping_is_tensorflows_default() -> None:
    assert checked_jobs(None) == checked_jobs({}) == {"worker": ("job-name=tensorflow",)}


def test_one_selector_may_stand_as_a_string() -> None:
    assert checked_jobs({"worker": "app=a"}) == {"worker": ("app=a",)}


def test_a_mapping_changed_later_changes_nothing() -> None:
    mapping = {"worker": ["app=a"]}
    jobs = checked_jobs(mapping)
    mapping["worker"].append("app=b")
    mapping["ps"] = []
    assert jobs == {"worker": ("app=a",)}


def test_a_namespace_given_twice_is_asked_once() -> None:
    assert checked_namespaces(["ml", "default", "ml"]) == ("ml", "default")
    assert checked_namespaces(None) == (None,)
