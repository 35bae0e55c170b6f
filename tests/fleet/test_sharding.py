"""Which process of several takes which targets."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.errors import ConfigurationError
from aioresolve.fleet.sharding import checked_shard, rendezvous

NAMES = [f"cluster-{number}" for number in range(4000)]
SHARDS = st.integers(1, 40)


@given(st.text(st.characters(exclude_categories=())), SHARDS)
def test_every_name_falls_to_one_of_the_shards(name: str, shards: int) -> None:
    assert 0 <= rendezvous(name, shards) < shards
    assert rendezvous(name, 1) == 0


@given(st.text(), SHARDS)
def test_one_more_shard_takes_from_the_others_and_nothing_else_moves(name: str, shards: int) -> None:
    assert rendezvous(name, shards + 1) in {rendezvous(name, shards), shards}


@given(st.lists(st.text(), unique=True, min_size=1, max_size=50), st.integers(2, 40))
def test_without_the_last_shard_only_what_it_had_moves(names: list[str], shards: int) -> None:
    moved = {name for name in names if rendezvous(name, shards) != rendezvous(name, shards - 1)}
    assert moved == {name for name in names if rendezvous(name, shards) == shards - 1}


@pytest.mark.parametrize("shards", [2, 3, 4, 7, 16])
def test_each_shard_has_about_its_share(shards: int) -> None:
    share = len(NAMES) / shards
    counts = Counter(rendezvous(name, shards) for name in NAMES)
    assert set(counts) == set(range(shards))
    assert all(0.8 * share < count < 1.2 * share for count in counts.values())


@pytest.mark.parametrize("shards", [1, 4, 15])
def test_one_more_shard_moves_about_its_share(shards: int) -> None:
    moved = sum(rendezvous(name, shards + 1) == shards for name in NAMES)
    assert 0.8 < moved * (shards + 1) / len(NAMES) < 1.2


def test_names_that_differ_by_a_digit_are_no_neighbours() -> None:
    assert len({rendezvous(f"us-east-{zone}", 64) for zone in range(200)}) > 55


def test_what_falls_where_never_changes_between_versions() -> None:
    assert [rendezvous(name, 5) for name in ("us-east", "us-west", "europe", "ü", "")] == [0, 1, 2, 2, 2]


class TestArgument:
    def test_none_is_the_whole_fleet(self) -> None:
        assert checked_shard(None, {"JOB_COMPLETION_INDEX": "1"}) is None

    def test_a_pair_is_taken_as_it_is(self) -> None:
        assert checked_shard((1, 4), {"JOB_COMPLETION_INDEX": "3"}) == (1, 4)

    @pytest.mark.parametrize("index", [0, 3])
    def test_of_a_number_alone_the_index_is_the_pods(self, index: int) -> None:
        assert checked_shard(4, {"JOB_COMPLETION_INDEX": str(index)}) == (index, 4)

    @pytest.mark.parametrize(
        "shard",
        [0, -1, True, "4", 4.0, (4, 4), (-1, 4), (0, 0), (0,), (0, 1, 2), (True, 2), ("0", 2), [0, 2]],
    )
    def test_anything_else_is_refused_with_what_it_may_be(self, shard: Any) -> None:
        with pytest.raises(ConfigurationError, match=r"^`shard=`: .*such as \(0, 4\)"):
            checked_shard(shard, {"JOB_COMPLETION_INDEX": "0"})

    def test_without_the_variable_the_error_says_so(self) -> None:
        with pytest.raises(ConfigurationError, match=r"INDEX is not set. Pass the index as well"):
            checked_shard(4, {})

    @pytest.mark.parametrize("index", ["", "one", "-1", "1.0", "²"])
    def test_a_variable_that_is_no_index_is_named(self, index: str) -> None:
        with pytest.raises(ConfigurationError, match=r"_INDEX is '.*': it has to be the index"):
            checked_shard(4, {"JOB_COMPLETION_INDEX": index})

    def test_an_index_beyond_the_shards_is_told(self) -> None:
        with pytest.raises(ConfigurationError, match=r"\$JOB_COMPLETION_INDEX is 4, but there are 4 shards"):
            checked_shard(4, {"JOB_COMPLETION_INDEX": "4"})
