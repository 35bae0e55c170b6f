"""Fleet files: their content, and the errors for invalid ones."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aioresolve import (
    CONTEXT_NAMESPACE,
    GCEClusterResolver,
    KubernetesClusterResolver,
    SageMakerClusterResolver,
    SimpleClusterResolver,
    SlurmClusterResolver,
    TFConfigClusterResolver,
    TPUClusterResolver,
    UnionClusterResolver,
)
from aioresolve.errors import ConfigurationError
from aioresolve.fleet.config import FleetFile, fleet_file, fleet_of, read_fleet
from aioresolve.fleet.config.targets import KINDS, UNION
from aioresolve.fleet.config.variables import interpolate

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from aioresolve.resolver.base import ClusterResolver

MINIMAL = "targets: {fixed: {static: {jobs: {worker: 'a:1'}}}}\n"


def fleet(text: str, **environ: str) -> FleetFile:
    return fleet_of(text, source="fleet.yaml", environ=environ)


def problems(text: str, **environ: str) -> list[str]:
    """Return the lines of the error for `text`, without the name of the file."""
    with pytest.raises(ConfigurationError) as raised:
        fleet(text, **environ)
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None
    lines = str(raised.value).splitlines()
    assert all(line.startswith("fleet.yaml:") for line in lines)
    return [line.removeprefix("fleet.yaml:") for line in lines]


def problem(text: str, **environ: str) -> str:
    (line,) = problems(text, **environ)
    return line


def arguments_of(resolver: ClusterResolver) -> dict[str, Any]:
    """Return the arguments that a resolver keeps, by the names of its attributes."""
    return {name.removeprefix("_"): value for name, value in vars(resolver).items()}


EXAMPLE = re.findall(r"```yaml\n(.*?)```", fleet_file.__doc__ or "", re.DOTALL)[0]


class TestContent:
    def test_example_in_the_documentation_is_valid(self) -> None:
        file = fleet(EXAMPLE)
        assert (file.interval, file.timeout, file.max_concurrency) == (30.0, 10.0, 64)
        assert {name: type(resolver) for name, resolver in file.targets.items()} == {
            "us-east": KubernetesClusterResolver,
            "tpu-a": TPUClusterResolver,
            "group-a": GCEClusterResolver,
            "fixed": SimpleClusterResolver,
            "this-step": SlurmClusterResolver,
            "this-job": SageMakerClusterResolver,
            "this-task": TFConfigClusterResolver,
            "both": UnionClusterResolver,
        }
        assert (
            arguments_of(file.targets["us-east"]).items()
            >= {
                "jobs": {"worker": ("app=trainer",), "ps": ("app=ps", "app=ps-spare")},
                "namespaces": ("training",),
                "context": "us-east",
                "kubeconfig": ("~/.kube/config",),
            }.items()
        )
        assert arguments_of(file.targets["tpu-a"])["tpu"] == ("my-tpu",)
        assert all(f" {kind}:" in EXAMPLE for kind in KINDS)
        members = arguments_of(file.targets["both"])["resolvers"]  # a union has its own
        assert not set(map(id, members)) & set(map(id, file.targets.values()))

    async def test_static_target_returns_its_tasks(self) -> None:
        text = 'targets: {a: {static: {jobs: {worker: ["h:1", "i:2"], ps: "p:3", eval: {4: "e:5"}}}}}'
        spec = await fleet(text).targets["a"].cluster_spec()
        assert spec.as_dict() == {"worker": ["h:1", "i:2"], "ps": ["p:3"], "eval": {4: "e:5"}}

    async def test_slurm_target_returns_the_tasks_of_the_step_and_sets_no_variable(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        variables = {"NODELIST": "n1", "TASKS_PER_NODE": "2"}
        for name, value in variables.items():
            monkeypatch.setenv(f"SLURM_STEP_{name}", value)
        monkeypatch.setenv("SLURM_PROCID", "0")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
        file = fleet("targets: {a: {slurm: {jobs: {ps: 1, worker: 1}, port: 9000}}}")
        assert (await file.targets["a"].cluster_spec()).as_dict() == {
            "ps": ["n1:9000"],
            "worker": ["n1:9001"],
        }
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"

    async def test_union_returns_the_tasks_of_its_members(self) -> None:
        file = fleet(
            "targets:\n"
            "  both: {union: [a, b]}\n"
            "  a: {static: {jobs: {worker: 'h:1'}}}\n"
            "  b: {static: {jobs: {worker: 'i:2'}}}\n"
        )
        spec = await file.targets["both"].cluster_spec()
        assert spec.as_dict() == {"worker": ["h:1", "i:2"]}

    def test_targets_keep_the_order_of_the_file(self) -> None:
        names = [f"t-{number}" for number in (3, 1, 2)]
        text = "targets:\n" + "".join(f"  {name}: {{static: {{jobs: {{w: a}}}}}}\n" for name in names)
        assert list(fleet(text).targets) == names

    def test_missing_settings_are_none(self) -> None:
        file = fleet(MINIMAL)
        assert (file.interval, file.timeout, file.max_concurrency) == (None, None, None)
        assert file.targets["fixed"].timeout == 30.0

    def test_timeout_applies_to_each_resolver(self) -> None:
        file = fleet(f"timeout: 500ms\n{EXAMPLE.replace('timeout:', 'x-timeout:')}")
        assert {resolver.timeout for resolver in file.targets.values()} == {0.5}

    def test_null_removes_a_default(self) -> None:
        file = fleet(
            "defaults: {kubernetes: {namespace: ml, jobs: {worker: app=a}}}\n"
            "targets:\n"
            "  narrow: {kubernetes: }\n"
            "  wide: {kubernetes: {namespace: null}}\n"
            "  own: {kubernetes: {namespace: CONTEXT_NAMESPACE}}\n"
        )
        assert arguments_of(file.targets["own"])["namespaces"] == (CONTEXT_NAMESPACE,)
        assert arguments_of(file.targets["narrow"])["namespaces"] == ("ml",)
        assert arguments_of(file.targets["wide"])["namespaces"] == (None,)

    def test_anchors_aliases_and_merge_keys_are_supported(self) -> None:
        file = fleet(
            "x-jobs: &jobs {worker: app=a}\n"
            "x-base: &base {port: 1, order_by: index}\n"
            "x-more: &more {port: 2, address: host_ip}\n"
            "targets:\n"
            "  one: {kubernetes: &one {<<: [*base, *more], jobs: *jobs}}\n"
            "  two: {kubernetes: {<<: *one, port: 3, jobs: {<<: *jobs, ps: app=b}}}\n"
        )
        one, two = map(arguments_of, file.targets.values())
        assert (one["port"], one["order_by"], one["address"]) == (1, "index", "host_ip")
        assert (two["port"], two["order_by"], two["address"]) == (3, "index", "host_ip")
        assert two["jobs"] == {"worker": ("app=a",), "ps": ("app=b",)}

    def test_names_are_strings_even_if_yaml_gives_them_another_type(self) -> None:
        for name in ("no", "on", "null", "1", "1.0", "2001-01-01", "~", "="):
            file = fleet(f"targets: {{{name}: {{static: {{jobs: {{{name}: {name}x}}}}}}}}")
            assert list(file.targets) == [name]
            assert arguments_of(file.targets[name])["cluster_spec"].as_dict() == {name: [f"{name}x"]}

    def test_numbers_may_be_quoted_or_zero(self) -> None:
        text = 'targets: {a: {kubernetes: {jobs: {w: a}, port: "99"}}}'
        assert arguments_of(fleet(text).targets["a"])["port"] == 99
        target = fleet("targets: {a: {slurm: {jobs: {ps: 0, worker: 2}}}}").targets["a"]
        assert arguments_of(target)["jobs"] == {"ps": 0, "worker": 2}

    def test_relative_paths_are_relative_to_the_fleet_file(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", "/root")

        def written(field: str, value: str) -> dict[str, Any]:
            text = f"targets: {{a: {{kubernetes: {{jobs: {{w: a}}, {field}: {value}}}}}}}"
            file = fleet_of(text, source="/etc/fleet/fleet.yaml", environ={"HOME": "/home/me"})
            return arguments_of(file.targets["a"])

        for value, expected in {
            "kubeconfig": ["/etc/fleet/kubeconfig"],
            "../kube/config": ["/etc/fleet/../kube/config"],
            "/root/config": ["/root/config"],
            "~/.kube/config": ["~/.kube/config"],
            "[a, /b]": ["/etc/fleet/a", "/b"],
            "'${HOME}/c'": ["/home/me/c"],
        }.items():
            assert written("kubeconfig", value)["kubeconfig"] == tuple(expected)
        for value, path in {
            "token": "/etc/fleet/token",
            "/run/token": "/run/token",
            "~/token": "/root/token",
        }.items():
            assert written("token_file", value)["overrides"].token_file == path


class TestVariables:
    def test_variables_are_replaced_in_any_value(self) -> None:
        file = fleet(
            "interval: ${EVERY}\n"
            "targets:\n"
            "  a:\n"
            "    kubernetes:\n"
            "      namespace: ['${TEAM}-prod', '${MISSING:-ml}']\n"
            "      port: ${PORT:-99}\n"
            "      jobs: {worker: 'app=$${TEAM},run=${RUN}'}\n",
            EVERY="2m",
            TEAM="nlp",
            RUN="7",
            PORT="",
        )
        resolver = arguments_of(file.targets["a"])
        assert file.interval == 120.0
        assert resolver["namespaces"] == ("nlp-prod", "ml")
        assert resolver["port"] == 99
        assert resolver["jobs"] == {"worker": ("app=${TEAM},run=7",)}

    def test_interpolated_text(self) -> None:
        texts = {
            "plain": "plain",
            "${A}${A}b": "11b",
            "${EMPTY}": "",
            "${EMPTY:-x y}": "x y",
            "${NONE:-}": "",
            "${A:-x}": "1",
            "$${A}": "${A}",
            "$$${A}": "$1",
            "${DOLLAR}": "${A}",
        }
        environ = {"A": "1", "EMPTY": "", "DOLLAR": "${A}"}
        assert {text: interpolate(text, environ) for text in texts} == texts

    def test_dollar_that_starts_no_variable_is_rejected(self) -> None:
        for text in ("$", "$A", "${", "${}", "${A", "${1}", "${A-x}", "${A:-${B}}", "a$ b", "$$$"):
            with pytest.raises(ValueError, match=r"write \$\$ for a dollar"):
                interpolate(text, {"A": "s3cret", "B": "s3cret"})

    def test_unset_variable_is_named_with_a_hint(self) -> None:
        with pytest.raises(
            ValueError, match=re.escape("$A is not set; set it, or give a default: ${A:-default}")
        ):
            interpolate("${A}", {})

    @given(st.text(), st.text())
    def test_any_text_is_unchanged_if_its_dollars_are_doubled(self, text: str, value: str) -> None:
        assert interpolate(text.replace("$", "$$"), {}) == text
        assert interpolate(text.replace("$", "$$") + "${A}", {"A": value}) == text + value

    def test_no_message_shows_the_value_of_a_variable(self) -> None:
        text = (
            "targets:\n"
            "  a: {kubernetes: {jobs: {w: a}, namespace: '${V}'}}\n"
            "  b: {tpu: {name: 'grpc://${V}:x'}}\n"
            "  c: {kubernetes: {jobs: {w: a}, executable_location: WITHIN_CLUSTER, context: '${V}'}}\n"
            "  d: {tpu: {name: 'ok', discovery_url: '${V}'}}\n"
        )
        found = problems(text, V="S3cret")
        assert found[0] == (
            "2: targets.a.kubernetes.namespace: the value of $V is invalid: '${V}' is not a valid"
            " namespace name. A name has at most 63 lower-case letters, digits and '-'."
        )
        assert [line.partition(": the value of $V is invalid")[0] for line in found] == [
            "2: targets.a.kubernetes.namespace",
            "3: targets.b.tpu.name",
            "4: targets.c.kubernetes",
            "5: targets.d.tpu.discovery_url",
        ]
        assert not any("S3cret" in line for line in found)

    def test_message_shows_the_variable_as_written(self) -> None:
        for field, value in (("port", "S3cret"), ("address", "S3cret"), ("context", "S3cret\n")):
            text = f"targets: {{a: {{kubernetes: {{jobs: {{w: a}}, {field}: '${{V}}'}}}}}}"
            found = problem(text, V=value)
            assert found.startswith(f"1: targets.a.kubernetes.{field}: the value of '${{V}}' ")
            assert "S3cret" not in found


WRONG: list[tuple[str, list[str]]] = [
    ("# nothing\n", ["1: the fleet file is empty; it requires at least `targets:`"]),
    ("- a\n", ["1: must be a mapping with `targets:`, not a list"]),
    ("interval: 1\n", ["1: has no `targets`; add at least one target below it"]),
    (
        "targets:\n",
        [
            (
                "1: targets: must be a mapping such as"
                " {us-east: {kubernetes: {jobs: {worker: app=trainer}}}}, not nothing"
            )
        ],
    ),
    (
        "targets: {}\n",
        [
            (
                "1: targets: the mapping is empty; an example is"
                " {us-east: {kubernetes: {jobs: {worker: app=trainer}}}}"
            )
        ],
    ),
    (
        "targets:\n  a:\n",
        [f"2: targets.a: has no kind; add one of {', '.join([*KINDS, UNION])} below it"],
    ),
    (
        "targets:\n  a: [b]\n",
        [
            "2: targets.a: must be a mapping such as {kubernetes: {jobs: {worker: app=trainer}}}, not a list",
        ],
    ),
    (
        "targets:\n  a:\n    kubernets: {}\n",
        ["3: targets.a.kubernets: unknown kind of target; did you mean 'kubernetes'?"],
    ),
    (
        "targets:\n  a:\n    xyz: {}\n",
        [f"3: targets.a.xyz: unknown kind of target; there are {', '.join(map(repr, [*KINDS, UNION]))}"],
    ),
    (
        "targets:\n  a: {tpu: {name: x}, static: {jobs: {w: a}}}\n",
        ["2: targets.a: has several kinds (tpu, static); make a target of each, and a union of them"],
    ),
    (
        "targets:\n  a:\n    kubernetes: {namespace: ml}\n",
        [
            (
                "3: targets.a.kubernetes: has no `jobs` and no `service`; add one of them here, or under"
                " defaults.kubernetes"
            )
        ],
    ),
    (
        "targets:\n  a:\n    kubernetes:\n      jobs: {w: a}\n      namespaces: ml\n",
        [
            (
                "5: targets.a.kubernetes.namespaces: unknown field of a kubernetes target;"
                " did you mean 'namespace'?"
            )
        ],
    ),
    (
        f"intervall: 3\n{MINIMAL}",
        ["1: intervall: unknown field of a fleet file; did you mean 'interval'?"],
    ),
    (
        f"interval: 0s\n{MINIMAL}",
        ["1: interval: '0s' is not a duration above zero. Write one such as 30s, 2m, 500ms or 30."],
    ),
    (f"timeout: {{}}\n{MINIMAL}", ["1: timeout: must be a string, not a mapping"]),
    (
        f"max_concurrency: 1.5\n{MINIMAL}",
        ["1: max_concurrency: '1.5' is not an integer between 1 and 100000"],
    ),
    (
        f"defaults: {{kubernetes: {{port: 0}}, union: {{}}, static: x}}\n{MINIMAL}",
        [
            "1: defaults.kubernetes.port: '0' is not an integer between 1 and 65535",
            "1: defaults.static: must be a mapping such as {FIELD: VALUE}, not a string",
            (
                "1: defaults.union: unknown kind of target with defaults;"
                f" there are {', '.join(map(repr, KINDS))}"
            ),
        ],
    ),
    (
        "targets:\n  a.b:\n    kubernetes:\n      jobs:\n        worker: [a, {b: c}]\n",
        ["5: targets.'a.b'.kubernetes.jobs.worker[1]: must be a string, not a mapping"],
    ),
    (
        "targets:\n  a:\n    kubernetes:\n      jobs: {w: []}\n      address: IP\n      context: ''\n",
        [
            (
                "4: targets.a.kubernetes.jobs.w: the list is empty."
                " Add at least one string, or remove the field."
            ),
            (
                "5: targets.a.kubernetes.address: 'IP' is not one of"
                " pod_ip, pod_ipv4, pod_ipv6, host_ip, hostname"
            ),
            "6: targets.a.kubernetes.context: it is empty. Write a value, or remove the field.",
        ],
    ),
    (
        'targets:\n  a:\n    tpu:\n      name: "a\\tb"\n',
        ["4: targets.a.tpu.name: 'a\\tb' contains a line break or another character that is not printable"],
    ),
    (
        "targets:\n  a:\n    tpu:\n      api_version: v2\n      name: [a, 'grpc://b']\n",
        ["5: targets.a.tpu.name: ('a', 'grpc://b') mixes names and addresses. Pass either."],
    ),
    (
        "targets:\n  a: {tpu: {name: a, not_healthy: ignore, address: host_ip}}\n",
        [
            "2: targets.a.tpu.address: 'host_ip' is not one of internal_ip, external_ip",
            "2: targets.a.tpu.not_healthy: 'ignore' is not one of raise, skip, allow",
        ],
    ),
    (
        "targets:\n  a:\n    static:\n      jobs: {w: {x: a}}\n",
        ["4: targets.a.static.jobs.w.x: 'x' is not a task index; write an integer, at least 0"],
    ),
    (
        "targets:\n  a: {static: {jobs: {w: {1: a, 01: b}}}}\n",
        ["2: targets.a.static.jobs.w.01: task 1 is defined twice; remove one of the two"],
    ),
    (
        (
            "targets:\n"
            "  a: {static: {jobs: {w: h}}}\n"
            "  b: {union: [a, c, b, a]}\n"
            "  c: {statik: {}}\n"
            "  d: {union: []}\n"
            "  e: {union: [aa, {}]}\n"
            "  f: {union: [aa]}\n"
        ),
        [
            "3: targets.b.union[2]: 'b' is a union; list its members here",
            "3: targets.b.union[3]: 'a' is listed twice; remove one of the two",
            "4: targets.c.statik: unknown kind of target; did you mean 'static'?",
            "5: targets.d.union: the list is empty. Add at least one string, or remove the field.",
            "6: targets.e.union[1]: must be a string, not a mapping",
            "7: targets.f.union[0]: 'aa' is not a target of this file; did you mean 'a'?",
        ],
    ),
    (
        "targets:\n  a: {static: {jobs: {w: a}}}\n  a: {static: {jobs: {w: b}}}\n",
        ["3: targets.a: is already defined on line 2; remove one of the two"],
    ),
    (
        f"x-a: !python/object:os.system a\n{MINIMAL}",
        ["1: x-a: the tag '!python/object:os.system' is not supported. Remove it."],
    ),
    (
        f"x-a: {{<<: 3}}\n{MINIMAL}",
        ["1: x-a.'<<': must be an alias of a mapping, such as *base, or a list of such aliases"],
    ),
    (f"x-a: &a [*a]\n{MINIMAL}", ["1: x-a[0]: contains itself through an alias. Write out its content."]),
    (f"x-a: *a\n{MINIMAL}", ["1: not valid YAML (column 6): found undefined alias 'a'"]),
    (f"? [a]\n: b\n{MINIMAL}", ["1: a list or mapping is used as a name. Names are strings."]),
    (f"'': b\n{MINIMAL}", ["1: a field has no name; write one before the colon"]),
    (
        "targets:\n  '${A}': {static: {jobs: {w: a}}}\n",
        ["2: targets.'${A}': variables are replaced in values only, not in names"],
    ),
    (
        f"{MINIMAL}---\n{MINIMAL}",
        ["2: starts a second YAML document. Remove the `---` before it."],
    ),
    (f'{MINIMAL}x-é: "\x01"\n', ["2: not valid YAML: contains a control character. Remove it."]),
    (f"{MINIMAL}x-a: \ud800\n", ["2: not valid YAML: contains half of a UTF-16 surrogate pair. Remove it."]),
    (
        f"x-a: {'[' * 40}\n{MINIMAL}",
        ["1: not valid YAML (column 38): nested deeper than 32 levels"],
    ),
    (
        "targets:\n  a: {tpu: {name: ${A}}}\n",
        [
            (
                "2: not valid YAML (column 20): while parsing a flow mapping did not find expected ','"
                " or '}'. Between { } and [ ], put \"${NAME}\" in quotes."
            )
        ],
    ),
    (
        "targets:\n\ta: b\n",
        [
            (
                "2: not valid YAML (column 1): while scanning for the next token found character that"
                " cannot start any token. Indent with spaces: YAML does not allow tabs there."
            )
        ],
    ),
    (
        f"{MINIMAL}interval: a: b\n",
        [
            (
                "2: not valid YAML (column 12): mapping values are not allowed in this context. Put a text"
                ' that contains ": " in quotes, and start all fields of a mapping in the same column.'
            )
        ],
    ),
]


class TestInvalidFiles:
    def test_problem_names_line_and_field(self) -> None:
        for text, expected in WRONG:
            assert problems(text) == expected

    def test_all_problems_are_reported_in_order_of_lines(self) -> None:
        text = (
            "targets:\n"
            "  a: {kubernetes: {jobs: {w: a}, port: x}}\n"
            "  b: {tpu: {nam: x}}\n"
            "  a: {static: }\n"
            "  c: {tpu: {name: '${UNSET}'}}\n"
            "interval: soon\n"
        )
        assert [line.split(": ")[:2] for line in problems(text)] == [
            ["2", "targets.a.kubernetes.port"],
            ["3", "targets.b.tpu"],
            ["3", "targets.b.tpu.nam"],
            ["4", "targets.a"],
            ["5", "targets.c.tpu.name"],
            ["6", "interval"],
        ]

    def test_twenty_of_many_problems_are_shown(self) -> None:
        targets = [f"  t-{n}: {{x: }}\n" for n in range(50)]
        found = problems("targets:\n" + "".join(targets))
        assert len(found) == 21
        assert found[-1] == " and 30 more problems"
        assert problems("targets:\n" + "".join(targets[:20])) == found[:20]

    def test_invalid_default_is_reported_once(self) -> None:
        targets = "".join(f"  t-{n}: {{tpu: {{name: a}}}}\n" for n in range(3))
        assert problem(f"defaults: {{tpu: {{api_version: v3}}}}\ntargets:\n{targets}") == (
            "1: defaults.tpu.api_version: 'v3' is not one of v1, v2"
        )

    def test_problem_in_an_anchor_is_reported_at_the_anchor(self) -> None:
        text = "x-a: &a {port: x}\ntargets:\n  t: {kubernetes: {<<: *a, jobs: {w: a}}}\n"
        assert problem(text).startswith("1: x-a.port: 'x' is not an integer")

    def test_names_cannot_send_escape_sequences_to_the_terminal(self) -> None:
        assert "\x1b" not in problem('targets: {"\\e[31m": {"\\e[32m": "\\e[33m"}}')

    def test_aliases_cannot_multiply_without_limit(self) -> None:
        lines = ["x-0: &a0 [x, x, x, x]"]
        lines += [f"x-{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}, *a{n - 1}]" for n in range(1, 30)]
        assert "has more than 1000000 values with its aliases written out" in problem("\n".join(lines))

    def test_merges_cannot_multiply_without_limit(self) -> None:
        lines = [f"x-0: &a0 {{{', '.join(f'k{n}: v' for n in range(1_000))}}}"]
        lines += [f"x-{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 600)]
        assert "has more than 1000000 values with its aliases written out" in problem("\n".join(lines))


class TestFields:
    def test_numbers_are_limited(self) -> None:
        for target, limit in {
            "kubernetes: {jobs: {worker: app=x}, port: LIMIT}": 65535,
            "kubernetes: {jobs: {worker: app=x}, max_concurrency: LIMIT}": 10_000,
            "gce: {group: g, project: p-12345, zone: us-central1-a, port: LIMIT}": 65535,
            "slurm: {port: LIMIT}": 65535,
            "slurm: {tasks_per_node: LIMIT}": 10_000,
            "slurm: {jobs: {worker: LIMIT}}": 1_000_000,
            "sagemaker: {port: LIMIT}": 65535,
        }.items():
            text = f"targets: {{a: {{{target}}}}}"
            fleet(text.replace("LIMIT", str(limit)))
            for number in (limit + 1, -1):
                error = problem(text.replace("LIMIT", str(number)))
                assert re.search(rf": '{number}' is not an integer between [01] and {limit}$", error)

    def test_an_index_of_a_task_has_at_most_nine_digits(self) -> None:
        fleet("targets: {a: {static: {jobs: {worker: {999999999: 'a:1'}}}}}")
        error = problem("targets: {a: {static: {jobs: {worker: {1000000000: 'a:1'}}}}}")
        assert "'1000000000' is not a task index" in error

    CONSTRUCTORS: Mapping[str, Any] = {
        "gce": GCEClusterResolver,
        "kubernetes": KubernetesClusterResolver,
        "tpu": TPUClusterResolver,
        "tf_config": TFConfigClusterResolver,
        "slurm": SlurmClusterResolver,
        "sagemaker": SageMakerClusterResolver,
    }
    ONLY_IN_CODE: Mapping[str, set[str]] = {
        "gce": {"credentials", "service", "task_id", "timeout"},
        "kubernetes": {"override_client", "timeout"},
        "tpu": {"coordinator_name", "coordinator_address", "credentials", "service", "timeout"},
        # The task of this process, and its GPUs, are not those of a fleet.
        "tf_config": {"task_type", "task_id", "environment", "timeout"},
        "slurm": {"gpus_per_node", "gpus_per_task", "auto_set_gpu", "timeout"},
        "sagemaker": {"task_type", "task_id", "environment", "timeout"},
    }

    def test_fields_are_the_arguments_of_the_constructor(self) -> None:
        for kind, constructor in self.CONSTRUCTORS.items():
            named = {field.argument or name for name, field in KINDS[kind].fields.items()}
            parameters = set(inspect.signature(constructor).parameters)
            assert named == parameters - self.ONLY_IN_CODE[kind]

    def test_each_field_reaches_its_constructor(self) -> None:
        kubernetes = arguments_of(
            fleet(
                "targets:\n"
                "  a:\n"
                "    kubernetes:\n"
                "      jobs: {worker: app=a}\n"
                "      namespace: [a, b]\n"
                "      context: c\n"
                "      kubeconfig: /k\n"
                "      server: https://h\n"
                "      token_file: /t\n"
                "      impersonate: ada\n"
                "      impersonate_groups: [math, logic]\n"
                "      executable_location: OFF_CLUSTER\n"
                "      port: 1\n"
                "      address: hostname\n"
                "      order_by: ['label:a', 'node-label:b']\n"
                "      not_running: skip\n"
                "      rpc_layer: grpcs\n"
                "      max_concurrency: 3\n"
            ).targets["a"]
        )
        services = fleet(
            "defaults: {kubernetes: {namespace: ml, jobs: {worker: app=a}}}\n"
            "targets:\n"
            "  a: {kubernetes: {service: 'trainer:grpc'}}\n"
            "  b: {kubernetes: {service: {worker: a, ps: [b, c]}}}\n"
        ).targets
        one = KubernetesClusterResolver(service="trainer:grpc", namespace="ml")
        two = KubernetesClusterResolver(service={"worker": "a", "ps": ["b", "c"]}, namespace="ml")
        assert [repr(each) for each in services.values()] == [repr(one), repr(two)]
        expected = KubernetesClusterResolver(
            {"worker": "app=a"},
            1,
            "grpcs",
            None,
            "OFF_CLUSTER",
            namespace=["a", "b"],
            context="c",
            kubeconfig=("/k",),
            server="https://h",
            token_file="/t",
            impersonate="ada",
            impersonate_groups=("math", "logic"),
            address="hostname",
            order_by=["label:a", "node-label:b"],
            not_running="skip",
            max_concurrency=3,
        )
        own = {"credentials": None, "lease": None, "arguments_of_init": None}
        assert kubernetes | own == arguments_of(expected) | own


class TestReading:
    def test_file_is_read(self, tmp_path: Path) -> None:
        path = tmp_path / "fleet.yaml"
        path.write_text("targets: {a: {kubernetes: {jobs: {w: a}, kubeconfig: config, context: '${C}'}}}")
        resolver = arguments_of(read_fleet(path, environ={"C": "ü"}).targets["a"])
        assert resolver["kubeconfig"] == (str(tmp_path / "config"),)
        assert resolver["context"] == "ü"

    def test_variables_and_relative_paths_are_those_of_the_process(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        text = "interval: ${EVERY}\ntargets: {a: {kubernetes: {jobs: {w: a}, kubeconfig: c}}}"
        (tmp_path / "fleet.yaml").write_text(text)
        monkeypatch.setenv("EVERY", "7")
        monkeypatch.chdir(tmp_path)
        file = read_fleet("fleet.yaml")
        assert file.interval == 7.0
        assert arguments_of(file.targets["a"])["kubeconfig"] == (str(tmp_path / "c"),)

    def test_byte_order_mark_is_skipped(self, tmp_path: Path) -> None:
        (tmp_path / "fleet.yaml").write_bytes(b"\xef\xbb\xbf" + MINIMAL.encode())
        assert list(read_fleet(tmp_path / "fleet.yaml").targets) == ["fixed"]

    def test_file_that_is_not_utf8_is_reported_with_its_line(self, tmp_path: Path) -> None:
        path = tmp_path / "fleet.yaml"
        path.write_bytes(b"interval: 1\ntargets: \xe9\n")
        with pytest.raises(ConfigurationError) as raised:
            read_fleet(path)
        assert str(raised.value) == f"{path}:2: not valid UTF-8. Save the file as UTF-8."
        assert raised.value.__context__ is None

    def test_unreadable_file_is_reported(self, tmp_path: Path) -> None:
        for name, reason in (("none.yaml", "No such file"), (".", "Is a directory"), ("a\0b", "null")):
            path = os.path.join(tmp_path, name)
            with pytest.raises(ConfigurationError, match="cannot read the fleet file") as raised:
                read_fleet(path)
            assert reason in str(raised.value)
            assert str(raised.value).startswith(f"{path}: ")

    def test_endless_file_is_rejected(self) -> None:
        with pytest.raises(ConfigurationError, match="larger than 16777216 bytes"):
            read_fleet("/dev/zero")


def loaded_after(script: str) -> set[str]:
    """Return the modules in memory after `script`, in a fresh interpreter."""
    script += "\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_packages_that_no_target_needs_are_not_imported() -> None:
    loaded = loaded_after(
        "import sys, aioresolve.fleet; assert 'yaml' not in sys.modules;"
        f"from aioresolve.fleet.config import fleet_of; fleet_of({MINIMAL!r}, environ={{}})"
    )
    assert not loaded & {"aioresolve.kubernetes", "aioresolve.tpu", "aiohttp", "grpc", "google"}


@pytest.mark.slow
def test_lines_are_the_same_without_libyaml() -> None:
    texts = [text for text, _ in WRONG if "\ud800" not in text]
    script = f"""
import sys
sys.modules["yaml._yaml"] = None
import yaml
from aioresolve.fleet.config import fleet_of
assert not yaml.__with_libyaml__
for text in {texts!r}:
    try:
        fleet_of(text, source="f", environ={{}})
    except ValueError as error:
        print(str(error).split(":")[1])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [problems(text)[0].split(":")[0] for text in texts]


PUNCTUATION = st.sampled_from(
    [*"&*!|>%@`'\"{}[]:,-?#\n\t $a~<", "  ", ": ", "\n  ", "&a ", "*a", "${SECRET}"]
)


@given(st.text() | st.lists(PUNCTUATION).map("".join))
@example("\x85")
@example("%YAML 9.9\n---\na")
@example("!!python/object/apply:os.system [x]")
@example("targets: {a: {static: {jobs: {w: {999999999: a}}}}}")
def test_any_text_is_valid_or_raises_an_error_with_the_line(text: str) -> None:
    message = "dir/fleet.yaml:1: "
    try:
        assert fleet_of(text, source="dir/fleet.yaml", environ={"SECRET": "S3CRET value"}).targets
    except ConfigurationError as error:
        message = str(error)
    assert re.match(r"dir/fleet\.yaml:[1-9][0-9]*: ", message)
    assert "S3CRET" not in message


@given(content=st.binary())
def test_any_bytes_raise_an_error_with_the_file(content: bytes, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "fleet.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=rf"^{re.escape(str(path))}:[1-9][0-9]*: "):
        read_fleet(path, environ={})
