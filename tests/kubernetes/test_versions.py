"""resourceVersions and their order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.kubernetes.api.objects import is_newer, is_older, oldest_version, version_number


@given(st.integers(0, 2**128), st.integers(0, 2**128))
def test_versions_compare_as_numbers(one: int, other: int) -> None:
    assert is_newer(version_number(str(one)), version_number(str(other))) == (one > other)
    assert is_older(version_number(str(one)), version_number(str(other))) == (one < other)


def test_of_versions_that_do_not_compare_the_later_one_is_newer() -> None:
    assert version_number("9" * 40) == 10**40 - 1
    for version in ("", "abc", "-1", "²", "٣", "9" * 41):
        number = version_number(version)
        assert number is None
        assert is_newer(number, 7)
        assert is_newer(7, number)
        assert not is_older(number, 7)
        assert not is_older(7, number)


@pytest.mark.parametrize(
    ("versions", "oldest"),
    [(["9", "10"], "9"), (["abc", "abc"], "abc"), (["abc", "10"], None), ([""], None), ([], None)],
)
def test_the_version_of_a_state_is_the_oldest_of_its_lists(versions: list[str], oldest: str | None) -> None:
    assert oldest_version(versions) == oldest
