"""fleet.yaml: what it says, and what is said of one that is wrong."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import traceback
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aioresolve import (
    KubernetesClusterResolver,
    SimpleClusterResolver,
    TPUClusterResolver,
    UnionClusterResolver,
)
from aioresolve.errors import ConfigurationError
from aioresolve.fleet.config import FleetFile, fleet_file, fleet_of, read_fleet
from aioresolve.fleet.config.targets import KINDS
from aioresolve.fleet.config.yaml_tree import interpolated, variables

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from aioresolve.resolver.base import ClusterResolver

MINIMAL = "targets: {fixed: {static: {jobs: {worker: 'a:1'}}}}\n"


def fleet(text: str, **environ: str) -> FleetFile:
    return fleet_of(text, source="fleet.yaml", environ=environ)


def problems(text: str, **environ: str) -> list[str]:
    """Return the lines of the error that `text` ends in, without the file's name."""
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


def given_to(resolver: ClusterResolver) -> dict[str, Any]:
    """Return what a resolver was given, by the names of its attributes."""
    return {name.removeprefix("_"): value for name, value in vars(resolver).items()}


EXAMPLE = re.findall(r"```yaml\n(.*?)```", fleet_file.__doc__ or "", re.DOTALL)[0]


class TestWhatItSays:
    def test_the_example_of_the_format(self) -> None:
        file = fleet(EXAMPLE)
        assert (file.interval, file.timeout, file.max_concurrency) == (30.0, 10.0, 64)
        assert {name: type(resolver) for name, resolver in file.targets.items()} == {
            "us-east": KubernetesClusterResolver,
            "tpu-a": TPUClusterResolver,
            "fixed": SimpleClusterResolver,
            "both": UnionClusterResolver,
        }
        assert (
            given_to(file.targets["us-east"]).items()
            >= {
                "jobs": {"worker": ("app=trainer",), "ps": ("app=ps", "app=ps-spare")},
                "namespaces": ("training",),
                "context": "us-east",
                "kubeconfig": ("~/.kube/config",),
            }.items()
        )
        assert given_to(file.targets["tpu-a"])["tpu"] == ("my-tpu",)

    async def test_a_target_that_is_told_its_tasks_answers_them(self) -> None:
        text = 'targets: {a: {static: {jobs: {worker: ["h:1", "i:2"], ps: "p:3", eval: {4: "e:5"}}}}}'
        spec = await fleet(text).targets["a"].cluster_spec()
        assert spec.as_dict() == {"worker": ["h:1", "i:2"], "ps": ["p:3"], "eval": {4: "e:5"}}

    async def test_a_union_answers_with_the_tasks_of_its_members(self) -> None:
        file = fleet(
            "targets:\n"
            "  both: {union: [a, b]}\n"
            "  a: {static: {jobs: {worker: 'h:1'}}}\n"
            "  b: {static: {jobs: {worker: 'i:2'}}}\n"
        )
        spec = await file.targets["both"].cluster_spec()
        assert spec.as_dict() == {"worker": ["h:1", "i:2"]}

    def test_a_union_has_resolvers_of_its_own(self) -> None:
        file = fleet(EXAMPLE)
        members = given_to(file.targets["both"])["resolvers"]
        assert not set(map(id, members)) & set(map(id, file.targets.values()))

    def test_targets_keep_the_order_of_the_file(self) -> None:
        names = [f"t-{number}" for number in (3, 1, 2)]
        text = "targets:\n" + "".join(f"  {name}: {{static: {{jobs: {{w: a}}}}}}\n" for name in names)
        assert list(fleet(text).targets) == names

    def test_what_the_file_does_not_say_is_none(self) -> None:
        file = fleet(MINIMAL)
        assert (file.interval, file.timeout, file.max_concurrency) == (None, None, None)
        assert file.targets["fixed"].timeout == 30.0

    def test_the_timeout_is_that_of_each_resolver(self) -> None:
        file = fleet(f"timeout: 500ms\n{EXAMPLE.replace('timeout:', 'x-timeout:')}")
        assert {resolver.timeout for resolver in file.targets.values()} == {0.5}

    def test_null_takes_a_default_back(self) -> None:
        file = fleet(
            "defaults: {kubernetes: {namespace: ml, jobs: {worker: app=a}}}\n"
            "targets:\n"
            "  narrow: {kubernetes: }\n"
            "  wide: {kubernetes: {namespace: null}}\n"
        )
        assert given_to(file.targets["narrow"])["namespaces"] == ("ml",)
        assert given_to(file.targets["wide"])["namespaces"] == (None,)

    def test_anchors_aliases_and_merge_keys_work(self) -> None:
        file = fleet(
            "x-jobs: &jobs {worker: app=a}\n"
            "x-base: &base {port: 1, order_by: index}\n"
            "x-more: &more {port: 2, address: host_ip}\n"
            "targets:\n"
            "  one: {kubernetes: &one {<<: [*base, *more], jobs: *jobs}}\n"
            "  two: {kubernetes: {<<: *one, port: 3, jobs: {<<: *jobs, ps: app=b}}}\n"
        )
        one, two = map(given_to, file.targets.values())
        assert (one["port"], one["order_by"], one["address"]) == (1, "index", "host_ip")
        assert (two["port"], two["order_by"], two["address"]) == (3, "index", "host_ip")
        assert two["jobs"] == {"worker": ("app=a",), "ps": ("app=b",)}

    @pytest.mark.parametrize("name", ["no", "on", "null", "1", "1.0", "2001-01-01", "~", "="])
    def test_a_name_is_its_text_whatever_yaml_takes_it_for(self, name: str) -> None:
        text = f"targets: {{{name}: {{static: {{jobs: {{{name}: {name}x}}}}}}}}"
        file = fleet(text)
        assert list(file.targets) == [name]
        assert given_to(file.targets[name])["cluster_spec"].as_dict() == {name: [f"{name}x"]}

    def test_a_number_may_be_in_quotes(self) -> None:
        text = 'targets: {a: {kubernetes: {jobs: {w: a}, port: "99"}}}'
        assert given_to(fleet(text).targets["a"])["port"] == 99

    @pytest.mark.parametrize(
        ("written", "expected"),
        [
            ("kubeconfig", ["/etc/fleet/kubeconfig"]),
            ("../kube/config", ["/etc/fleet/../kube/config"]),
            ("/root/config", ["/root/config"]),
            ("~/.kube/config", ["~/.kube/config"]),
            ("[a, /b]", ["/etc/fleet/a", "/b"]),
            ("${HOME}/c", ["/home/me/c"]),
        ],
    )
    def test_a_relative_kubeconfig_is_relative_to_the_file(self, written: str, expected: list[str]) -> None:
        text = f"targets:\n  a:\n    kubernetes:\n      jobs: {{w: a}}\n      kubeconfig: {written}\n"
        file = fleet_of(text, source="/etc/fleet/fleet.yaml", environ={"HOME": "/home/me"})
        assert given_to(file.targets["a"])["kubeconfig"] == tuple(expected)

    def test_it_cannot_be_changed(self) -> None:
        file = fleet(MINIMAL)
        with pytest.raises(AttributeError):
            file.interval = 1.0  # type: ignore[misc]
        with pytest.raises(TypeError):
            file.targets["x"] = file.targets["fixed"]  # type: ignore[index]


class TestVariables:
    def test_they_are_replaced_in_any_value(self) -> None:
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
        resolver = given_to(file.targets["a"])
        assert file.interval == 120.0
        assert resolver["namespaces"] == ("nlp-prod", "ml")
        assert resolver["port"] == 99
        assert resolver["jobs"] == {"worker": ("app=${TEAM},run=7",)}

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("", ""),
            ("plain", "plain"),
            ("${A}", "1"),
            ("${A}${A}b", "11b"),
            ("${EMPTY}", ""),
            ("${EMPTY:-x y}", "x y"),
            ("${NONE:-}", ""),
            ("${A:-x}", "1"),
            ("$$", "$"),
            ("$${A}", "${A}"),
            ("$$$${A}", "$${A}"),
            ("$$${A}", "$1"),
            ("${DOLLAR}", "${A}"),
        ],
    )
    def test_a_text_with_variables(self, text: str, expected: str) -> None:
        assert interpolated(text, {"A": "1", "EMPTY": "", "DOLLAR": "${A}"}) == expected

    @pytest.mark.parametrize(
        "text", ["$", "$A", "${", "${}", "${A", "${1}", "${A-x}", "${A:-${B}}", "a$ b", "$$$"]
    )
    def test_a_dollar_that_begins_nothing_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"write \$\$ for a dollar"):
            interpolated(text, {"A": "s3cret", "B": "s3cret"})

    def test_a_variable_that_is_not_set_is_named_with_the_mend(self) -> None:
        with pytest.raises(
            ValueError, match=re.escape("$A is not set; set it, or give a default: ${A:-default}")
        ):
            interpolated("${A}", {})

    @given(st.text(), st.text())
    def test_any_text_comes_back_when_its_dollars_are_doubled(self, text: str, value: str) -> None:
        assert interpolated(text.replace("$", "$$"), {}) == text
        assert interpolated(text.replace("$", "$$") + "${A}", {"A": value}) == text + value

    @given(st.text(alphabet="${}:-AB1 x", max_size=12))
    def test_any_text_has_a_meaning_or_a_value_error_without_what_variables_hold(self, text: str) -> None:
        names = variables(text)
        message = ""
        try:
            interpolated(text, dict.fromkeys(names, "s3cret"))
        except ValueError as error:
            message = str(error)
        assert "s3cret" not in message

    def test_what_a_variable_holds_is_shown_nowhere(self) -> None:
        text = (
            "targets:\n"
            "  a: {kubernetes: {jobs: {w: a}, namespace: '${V}'}}\n"
            "  b: {tpu: {name: 'grpc://${V}:x'}}\n"
            "  c: {kubernetes: {jobs: {w: a}, executable_location: WITHIN_CLUSTER, context: '${V}'}}\n"
            "  d: {tpu: {name: 'ok', discovery_url: '${V}'}}\n"
        )
        told = problems(text, V="S3cret")
        assert told[0] == (
            "2: targets.a.kubernetes.namespace: what $V stands for is refused: namespace='${V}' cannot be a"
            " namespace: at most 63 lower-case letters, digits, '-'"
        )
        assert [line.partition(": what $V stands for")[0] for line in told] == [
            "2: targets.a.kubernetes.namespace",
            "3: targets.b.tpu.name",
            "4: targets.c.kubernetes",
            "5: targets.d.tpu.discovery_url",
        ]
        assert not any("S3cret" in line for line in told)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("port", "S3cret"),
            ("address", "S3cret"),
            ("context", "S3cret\n"),
            ("context", " "),
        ],
    )
    def test_a_field_shows_what_is_written(self, field: str, value: str) -> None:
        told = problem(f"targets: {{a: {{kubernetes: {{jobs: {{w: a}}, {field}: '${{V}}'}}}}}}", V=value)
        assert told.startswith(f"1: targets.a.kubernetes.{field}: what '${{V}}' stands for ")
        assert "S3cret" not in told


WRONG: list[tuple[str, list[str]]] = [
    ("", ["1: is empty; a fleet file has at least `targets:`"]),
    ("# nothing\n", ["1: is empty; a fleet file has at least `targets:`"]),
    ("---\n", ["1: is empty; a fleet file has at least `targets:`"]),
    ("- a\n", ["1: must be a mapping with `targets:`, not a list"]),
    ("text\n", ["1: must be a mapping with `targets:`, not the text 'text'"]),
    ("interval: 1\n", ["1: lacks `targets`; write at least one target below it"]),
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
                "1: targets: is an empty mapping; write at least one entry, such as"
                " {us-east: {kubernetes: {jobs: {worker: app=trainer}}}}"
            )
        ],
    ),
    (
        "targets:\n  a:\n",
        ["2: targets.a: does not say what it is; write one of kubernetes, tpu, static, union below it"],
    ),
    (
        "targets:\n  a: [b]\n",
        [
            "2: targets.a: must be a mapping such as {kubernetes: {jobs: {worker: app=trainer}}}, not a list",
        ],
    ),
    (
        "targets:\n  a:\n    kubernets: {}\n",
        ["3: targets.a.kubernets: is no kind of target; did you mean 'kubernetes'?"],
    ),
    (
        "targets:\n  a:\n    gcs: {}\n",
        ["3: targets.a.gcs: is no kind of target; there are 'kubernetes', 'tpu', 'static', 'union'"],
    ),
    (
        "targets:\n  a: {tpu: {name: x}, static: {jobs: {w: a}}}\n",
        ["2: targets.a: is of several kinds (tpu, static); make a target of each, and a union of them"],
    ),
    (
        "targets:\n  a:\n    kubernetes: {namespace: ml}\n",
        ["3: targets.a.kubernetes: lacks `jobs`; write it here, or under defaults.kubernetes"],
    ),
    (
        "targets:\n  a: {tpu: }\n",
        ["2: targets.a.tpu: lacks `name`; write it here, or under defaults.tpu"],
    ),
    (
        "targets:\n  a:\n    kubernetes:\n      jobs: {w: a}\n      namespaces: ml\n",
        ["5: targets.a.kubernetes.namespaces: is no field of a kubernetes target; did you mean 'namespace'?"],
    ),
    (
        f"intervall: 3\n{MINIMAL}",
        ["1: intervall: is no field of a fleet file; did you mean 'interval'?"],
    ),
    (
        f"interval: 0s\n{MINIMAL}",
        ["1: interval: '0s' is no span of time; write one above zero, such as 30s, 2m, 500ms or 30"],
    ),
    (f"timeout: {{}}\n{MINIMAL}", ["1: timeout: must be a text, not a mapping"]),
    (
        f"max_concurrency: 1.5\n{MINIMAL}",
        ["1: max_concurrency: '1.5' is no whole number from 1 to 100000; write one"],
    ),
    (
        f"defaults: {{kubernetes: {{port: 0}}, union: {{}}, static: x}}\n{MINIMAL}",
        [
            "1: defaults.kubernetes.port: '0' is no whole number from 1 to 65535; write one",
            "1: defaults.static: must be a mapping such as {FIELD: VALUE}, not the text 'x'",
            "1: defaults.union: is no kind of target with defaults; there are 'kubernetes', 'tpu', 'static'",
        ],
    ),
    (
        "targets:\n  a.b:\n    kubernetes:\n      jobs:\n        worker: [a, {b: c}]\n",
        ["5: targets.'a.b'.kubernetes.jobs.worker[1]: must be a text, not a mapping"],
    ),
    (
        "targets:\n  a:\n    kubernetes:\n      jobs: {w: []}\n      address: IP\n      context: ''\n",
        [
            (
                "4: targets.a.kubernetes.jobs.w: is an empty list;"
                " write at least one text into it, or leave it out"
            ),
            (
                "5: targets.a.kubernetes.address: 'IP' is none of"
                " pod_ip, pod_ipv4, pod_ipv6, host_ip, hostname; write one of these"
            ),
            "6: targets.a.kubernetes.context: it is empty; write a value, or leave it out",
        ],
    ),
    (
        'targets:\n  a:\n    tpu:\n      name: "a\\tb"\n',
        ["4: targets.a.tpu.name: 'a\\tb' holds a line break or another character that does not print"],
    ),
    (
        "targets:\n  a:\n    kubernetes:\n      jobs: {w: a}\n      namespace: Foo\n",
        [
            (
                "5: targets.a.kubernetes.namespace: namespace='Foo' cannot be a namespace:"
                " at most 63 lower-case letters, digits, '-'"
            )
        ],
    ),
    (
        "targets:\n  a:\n    tpu:\n      api_version: v2\n      name: [a, 'grpc://b']\n",
        ["5: targets.a.tpu.name: tpu=('a', 'grpc://b') mixes names and addresses; give either"],
    ),
    (
        "targets:\n  a:\n    static:\n      jobs: {w: {x: a}}\n",
        ["4: targets.a.static.jobs.w.x: 'x' is no task index; write a whole number from 0 on"],
    ),
    (
        "targets:\n  a: {static: {jobs: {w: {1: a, 01: b}}}}\n",
        ["2: targets.a.static.jobs.w.01: task 1 is given twice; keep one of the two"],
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
            "3: targets.b.union[2]: 'b' is a union; write its members here",
            "3: targets.b.union[3]: 'a' is in it twice; leave one out",
            "4: targets.c.statik: is no kind of target; did you mean 'static'?",
            "5: targets.d.union: is an empty list; write at least one text into it, or leave it out",
            "6: targets.e.union[1]: must be a text, not a mapping",
            "7: targets.f.union[0]: 'aa' is no target of this file; did you mean 'a'?",
        ],
    ),
    (
        "targets:\n  a: {static: {jobs: {w: a}}}\n  a: {static: {jobs: {w: b}}}\n",
        ["3: targets.a: is given twice, first on line 2; keep one of the two"],
    ),
    (
        f"interval: 1\ninterval: 2\n{MINIMAL}",
        ["2: interval: is given twice, first on line 1; keep one of the two"],
    ),
    (
        f"x-a: !python/object:os.system a\n{MINIMAL}",
        ["1: x-a: has the tag '!python/object:os.system', which means nothing here; leave it out"],
    ),
    (
        f"x-a: !!binary aGk=\n{MINIMAL}",
        ["1: x-a: has the tag '!!binary', which means nothing here; leave it out"],
    ),
    (
        f"x-a: {{<<: 3}}\n{MINIMAL}",
        ["1: x-a.'<<': must be an alias of a mapping, such as *base, or a list of such"],
    ),
    (f"x-a: &a [*a]\n{MINIMAL}", ["1: x-a[0]: contains itself by an alias; write out what is meant"]),
    (f"x-a: *a\n{MINIMAL}", ["1: is not valid YAML (column 6): found undefined alias 'a'"]),
    (f"? [a]\n: b\n{MINIMAL}", ["1: has a list or a mapping for a name; names are texts"]),
    (f"'': b\n{MINIMAL}", ["1: has an entry without a name; write a name before the colon"]),
    (
        "targets:\n  '${A}': {static: {jobs: {w: a}}}\n",
        ["2: targets.'${A}': variables are replaced in values only; write the name out"],
    ),
    (
        f"{MINIMAL}---\n{MINIMAL}",
        ["2: begins a second YAML document; a fleet is one: leave the `---` out"],
    ),
    (f'{MINIMAL}x-é: "\x01"\n', ["2: holds a control character; take it out"]),
    (f"{MINIMAL}x-a: \ud800\n", ["2: holds half of a UTF-16 surrogate pair; take it out"]),
    (
        f"x-a: {'[' * 40}\n{MINIMAL}",
        ["1: is not valid YAML (column 38): nested deeper than 32 levels"],
    ),
    (
        "targets:\n  a: {tpu: {name: ${A}}}\n",
        [
            (
                "2: is not valid YAML (column 20): while parsing a flow mapping did not find expected ','"
                " or '}'; between { } and [ ] put \"${NAME}\" in quotes"
            )
        ],
    ),
    (
        "targets:\n\ta: b\n",
        [
            (
                "2: is not valid YAML (column 1): while scanning for the next token found character that"
                " cannot start any token; indent with spaces, YAML takes no tabs there"
            )
        ],
    ),
    (
        f"{MINIMAL}interval: a: b\n",
        [
            (
                "2: is not valid YAML (column 12): mapping values are not allowed in this context; put a text"
                ' with ": " in it in quotes, and begin entries of one mapping in one column'
            )
        ],
    ),
]


class TestWhatIsWrong:
    @pytest.mark.parametrize(("text", "expected"), WRONG)
    def test_it_is_told_with_its_line_its_field_and_the_mend(self, text: str, expected: list[str]) -> None:
        assert problems(text) == expected

    def test_all_of_it_is_told_at_once_in_order_of_lines(self) -> None:
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

    def test_what_constructors_refuse_is_told_of_all_targets(self) -> None:
        targets = (f"  t-{n}: {{kubernetes: {{jobs: {{w: a}}, namespace: N}}}}\n" for n in range(3))
        assert len(problems("targets:\n" + "".join(targets))) == 3

    def test_of_many_problems_twenty_are_told(self) -> None:
        told = problems("targets:\n" + "".join(f"  t-{n}: {{x: }}\n" for n in range(50)))
        assert len(told) == 21
        assert told[-1] == " and 30 more such problems"

    def test_a_default_that_is_wrong_is_told_once(self) -> None:
        targets = "".join(f"  t-{n}: {{tpu: {{name: a}}}}\n" for n in range(3))
        assert problem(f"defaults: {{tpu: {{api_version: v3}}}}\ntargets:\n{targets}") == (
            "1: defaults.tpu.api_version: 'v3' is none of v1, v2; write one of these"
        )

    def test_what_is_wrong_in_an_anchor_is_told_where_it_is_written(self) -> None:
        text = "x-a: &a {port: x}\ntargets:\n  t: {kubernetes: {<<: *a, jobs: {w: a}}}\n"
        assert problem(text).startswith("1: x-a.port: 'x' is no whole number")

    def test_a_name_never_acts_upon_the_terminal(self) -> None:
        assert "\x1b" not in problem('targets: {"\\e[31m": {"\\e[32m": "\\e[33m"}}')

    def test_aliases_that_multiply_are_stopped(self) -> None:
        lines = ["x-0: &a0 [x, x, x, x]"]
        lines += [f"x-{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}, *a{n - 1}]" for n in range(1, 30)]
        assert "is more than 1000000 values with its aliases written out" in problem("\n".join(lines))

    def test_merges_that_multiply_are_stopped(self) -> None:
        lines = [f"x-0: &a0 {{{', '.join(f'k{n}: v' for n in range(1_000))}}}"]
        lines += [f"x-{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 600)]
        assert "is more than 1000000 values with its aliases written out" in problem("\n".join(lines))


class TestTheFields:
    CONSTRUCTORS: Mapping[str, Any] = {"kubernetes": KubernetesClusterResolver, "tpu": TPUClusterResolver}
    ONLY_IN_CODE: Mapping[str, set[str]] = {
        "kubernetes": {"override_client", "timeout"},
        "tpu": {"coordinator_name", "coordinator_address", "credentials", "service", "timeout"},
    }

    @pytest.mark.parametrize("kind", CONSTRUCTORS)
    def test_they_are_what_the_constructor_takes(self, kind: str) -> None:
        named = {field.argument or name for name, field in KINDS[kind].fields.items()}
        parameters = set(inspect.signature(self.CONSTRUCTORS[kind]).parameters)
        assert named == parameters - self.ONLY_IN_CODE[kind]

    def test_each_reaches_its_constructor(self) -> None:
        kubernetes = given_to(
            fleet(
                "targets:\n"
                "  a:\n"
                "    kubernetes:\n"
                "      jobs: {worker: app=a}\n"
                "      namespace: [a, b]\n"
                "      context: c\n"
                "      kubeconfig: /k\n"
                "      executable_location: OFF_CLUSTER\n"
                "      port: 1\n"
                "      address: hostname\n"
                "      order_by: index\n"
                "      not_running: skip\n"
                "      rpc_layer: grpcs\n"
                "      max_concurrency: 3\n"
            ).targets["a"]
        )
        expected = KubernetesClusterResolver(
            {"worker": "app=a"},
            1,
            "grpcs",
            None,
            "OFF_CLUSTER",
            namespace=["a", "b"],
            context="c",
            kubeconfig=("/k",),
            address="hostname",
            order_by="index",
            not_running="skip",
            max_concurrency=3,
        )
        its_own = {"credentials": None, "sharing": None}
        assert kubernetes | its_own == given_to(expected) | its_own

    @pytest.mark.parametrize("kind", KINDS)
    def test_each_kind_is_in_the_example(self, kind: str) -> None:
        assert f" {kind}:" in EXAMPLE


class TestReading:
    def test_a_file_is_read(self, tmp_path: Path) -> None:
        path = tmp_path / "fleet.yaml"
        path.write_text("targets: {a: {kubernetes: {jobs: {w: a}, kubeconfig: config, context: '${C}'}}}")
        resolver = given_to(read_fleet(path, environ={"C": "ü"}).targets["a"])
        assert resolver["kubeconfig"] == (str(tmp_path / "config"),)
        assert resolver["context"] == "ü"

    def test_its_variables_are_those_of_the_process(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "fleet.yaml").write_text("interval: ${EVERY}\n" + MINIMAL)
        monkeypatch.setenv("EVERY", "7")
        monkeypatch.chdir(tmp_path)
        assert read_fleet("fleet.yaml").interval == 7.0

    def test_a_relative_kubeconfig_stays_where_it_is_when_the_process_moves(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "fleet.yaml").write_text("targets: {a: {kubernetes: {jobs: {w: a}, kubeconfig: c}}}")
        monkeypatch.chdir(tmp_path)
        assert given_to(read_fleet("fleet.yaml").targets["a"])["kubeconfig"] == (str(tmp_path / "c"),)

    def test_a_byte_order_mark_is_no_part_of_it(self, tmp_path: Path) -> None:
        (tmp_path / "fleet.yaml").write_bytes(b"\xef\xbb\xbf" + MINIMAL.encode())
        assert list(read_fleet(tmp_path / "fleet.yaml").targets) == ["fixed"]

    def test_a_file_that_is_no_utf_8_is_told_with_the_line(self, tmp_path: Path) -> None:
        path = tmp_path / "fleet.yaml"
        path.write_bytes(b"interval: 1\ntargets: \xe9\n")
        with pytest.raises(ConfigurationError) as raised:
            read_fleet(path)
        assert str(raised.value) == f"{path}:2: is not UTF-8; save the file as UTF-8"
        assert raised.value.__context__ is None

    @pytest.mark.parametrize(
        ("name", "reason"),
        [("none.yaml", "No such file or directory"), (".", "Is a directory"), ("a\0b", "null")],
    )
    def test_a_file_that_cannot_be_read_is_told(self, tmp_path: Path, name: str, reason: str) -> None:
        path = os.path.join(tmp_path, name)
        with pytest.raises(ConfigurationError, match="the fleet file cannot be read") as raised:
            read_fleet(path)
        assert reason in str(raised.value)
        assert str(raised.value).startswith(f"{path}: ")

    def test_a_file_without_end_is_given_up(self) -> None:
        with pytest.raises(ConfigurationError, match="larger than 16777216 bytes"):
            read_fleet("/dev/zero")


def loaded_after(script: str) -> set[str]:
    """Return the modules in memory after `script`, in a fresh interpreter."""
    script += "\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_rooms_that_no_target_needs_are_not_imported() -> None:
    loaded = loaded_after(
        f"from aioresolve.fleet.config import fleet_of; fleet_of({MINIMAL!r}, environ={{}})"
    )
    assert not loaded & {"aioresolve.kubernetes", "aioresolve.tpu", "aiohttp", "grpc", "google"}


def test_importing_the_fleet_loads_no_yaml() -> None:
    assert "yaml" not in loaded_after("import aioresolve.fleet")


def test_without_libyaml_the_lines_are_the_same() -> None:
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


FIELD_NAMES = sorted({name for kind in KINDS.values() for name in kind.fields})
TOP_NAMES = ["targets", "defaults", "interval", "timeout", "max_concurrency", "x-a"]
NAMES = st.sampled_from([*TOP_NAMES, *KINDS, *FIELD_NAMES, "<<", "union", "a", "b", "0", "01"])
VALUES = st.one_of(
    NAMES,
    st.none(),
    st.sampled_from(
        ["${SECRET}", "grpc://${SECRET}", "${SECRET}:1", "$x", "30s", "70000", "v2", "h:1", "pod_ip"]
    ),
    st.integers(-1, 70_000),
    st.text(max_size=5),
)
TREES = st.recursive(
    VALUES,
    lambda trees: (
        st.lists(trees, max_size=3) | st.dictionaries(NAMES | st.text(max_size=3), trees, max_size=5)
    ),
    max_leaves=12,
)
SECRETS = st.sampled_from(["S3CRET", "S3CRET value", "S3CRET\n", "https://S3CRET{x}", "grpc://S3CRET,a"])
PLAUSIBLE: dict[str, list[Any]] = {
    "jobs": ["a", ["a", "b"], "${SECRET}", ["h:1", "${SECRET}"], {0: "${SECRET}", 4: "a"}],
    "name": ["a", ["a", "b"], "${SECRET}", "grpc://h:1", "grpc://${SECRET}:1", ["grpc://h:${SECRET}"]],
    "namespace": ["ml", ["ml", "${SECRET}"], "${SECRET}-x", "Wrong"],
    "executable_location": ["WITHIN_CLUSTER", "OFF_CLUSTER"],
    "port": [1, "${SECRET}", 70_000],
    "max_concurrency": [1, "${SECRET}", 0],
    "address": ["pod_ip", "${SECRET}"],
    "order_by": ["index", "${SECRET}"],
    "not_running": ["skip", "${SECRET}"],
    "api_version": ["v2", "${SECRET}"],
    "discovery_url": ["https://h/", "https://${SECRET}/", "${SECRET}"],
}
"""Of fields that are not any text, what may be written."""


@st.composite
def fields_of(draw: st.DrawFn, kind: str) -> dict[str, Any]:
    """What makes a target of this kind, or only just does not."""
    written: dict[str, Any] = {}
    for name, field in KINDS[kind].fields.items():
        if field.is_required or draw(st.integers(0, 2)) == 0:
            written[name] = draw(st.sampled_from(PLAUSIBLE.get(name, ["a", "${SECRET}"])))
    if "jobs" in written:
        written["jobs"] = {"worker": written["jobs"]}
    return written


TARGETS = st.sampled_from([*KINDS]).flatmap(lambda kind: fields_of(kind).map(lambda written: {kind: written}))
UNIONS = st.lists(st.sampled_from(["a", "b", "c", "${SECRET}"]), max_size=2).map(
    lambda names: {"union": names}
)


@st.composite
def fleets(draw: st.DrawFn) -> str:
    """Files that are fleets by their outline, some with anything in the place of what is expected."""
    target = draw(st.sampled_from([TARGETS, TARGETS, TARGETS | UNIONS, TARGETS | TREES]))
    targets = draw(st.dictionaries(st.sampled_from(["a", "b", "c"]), target, min_size=1, max_size=3))
    top = st.sampled_from(["interval", "timeout", "defaults", "x-a"])
    others = draw(st.sampled_from([{}, {"timeout": "5s"}]) | st.dictionaries(top, TREES, max_size=2))
    return str(yaml.safe_dump({**others, "targets": targets}, sort_keys=False))


def check(text: str, secret: str) -> None:
    """Check that `text` is a fleet, or an error that names file and line, without what a variable holds."""
    try:
        file = fleet_of(text, source="dir/fleet.yaml", environ={"SECRET": secret})
    except ConfigurationError as error:
        said, shown = str(error), "".join(traceback.format_exception(error))
    else:
        assert file.targets
        said, shown = "dir/fleet.yaml:1: ", repr(file)
    assert re.match(r"dir/fleet\.yaml:[1-9][0-9]*: ", said), said
    assert "S3CRET" not in shown


@given(st.text())
@example("\x85")
@example("%YAML 9.9\n---\na")
@example("!!python/object/apply:os.system [x]")
@example("targets: {a: {static: {jobs: {w: {999999999: a}}}}}")
def test_any_text_ends_in_a_fleet_or_in_an_error_that_names_the_line(text: str) -> None:
    check(text, "S3CRET value")


@given(
    st.lists(
        st.sampled_from([*"&*!|>%@`'\"{}[]:,-?#\n\t $a~<", "  ", ": ", "\n  ", "&a ", "*a", "${SECRET}"])
    )
)
def test_any_punctuation_ends_in_a_fleet_or_in_an_error_that_names_the_line(parts: list[str]) -> None:
    check("".join(parts), "S3CRET value")


@settings(max_examples=300)
@given(fleets(), SECRETS)
def test_any_fleet_ends_in_a_fleet_or_in_an_error_that_names_the_line(text: str, secret: str) -> None:
    check(text, secret)


@given(content=st.binary())
def test_any_file_ends_in_a_fleet_or_in_an_error_that_names_it(content: bytes, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "fleet.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=rf"^{re.escape(str(path))}:[1-9][0-9]*: "):
        read_fleet(path, environ={})
