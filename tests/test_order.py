"""Randomness by key: data order and draws depend on what they are for, and on nothing that was drawn before."""

import itertools
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from diffusionblocks.data.order import batch_rows
from diffusionblocks.randomness import key_seed, keyed_generator, seeded

KEY = (3, "noise", 1, 20)


def epoch_order(num_samples: int, epoch: int = 0, seed: int = 0, block: int = 0) -> list[int]:
    """The order of one epoch, read as one batch of the data's size."""
    rows = batch_rows(num_samples, num_samples, epoch, seed, block)
    assert {number for number, _ in rows} == {epoch}
    return [index for _, index in rows]


@settings(derandomize=True, max_examples=80, deadline=None)
@given(num_samples=st.integers(1, 40), batch_size=st.integers(1, 100), num_epochs=st.integers(1, 4))
def test_each_sample_comes_once_an_epoch_in_full_batches(num_samples, batch_size, num_epochs):
    num_batches = -(-num_epochs * num_samples // batch_size)
    batches = [batch_rows(num_samples, batch_size, update, seed=0, block=0) for update in range(num_batches)]
    assert all(len(batch) == batch_size for batch in batches)
    rows = list(itertools.chain(*batches))
    assert [epoch for epoch, _ in rows] == sorted(epoch for epoch, _ in rows)
    seen = Counter(rows[: num_epochs * num_samples])
    assert seen == Counter(itertools.product(range(num_epochs), range(num_samples)))
    assert max(Counter(rows).values()) == 1


def test_a_batch_does_not_need_those_before_it():
    late = batch_rows(23, 4, 17, seed=98, block=1)
    in_turn = [batch_rows(23, 4, update, seed=98, block=1) for update in range(18)]
    assert in_turn[17] == late


@pytest.mark.parametrize("other", [{"seed": 1}, {"block": 1}, {"epoch": 1}], ids=str)
def test_the_order_depends_on_seed_block_and_epoch(other):
    assert epoch_order(50) != epoch_order(50, **other)


def test_the_order_depends_on_nothing_else():
    """In particular not on a global generator: a hundred other epochs in between change nothing."""
    first = epoch_order(50)
    for epoch in range(1, 101):
        epoch_order(50, epoch)
    assert epoch_order(50) == first


def test_an_epoch_is_shuffled():
    assert epoch_order(50) not in (list(range(50)), list(range(50))[::-1])


def test_every_sample_is_as_likely_to_come_first():
    """600 epochs of 6 samples: each first about 100 times (standard deviation 9.1)."""
    first = Counter(epoch_order(6, epoch)[0] for epoch in range(600))
    assert all(abs(first[index] - 100) < 4 * 9.1 for index in range(6))


def test_a_key_gives_the_same_seed_in_every_process():
    """Pinned (by b2sum): another value would change the data, noise and targets of runs that exist."""
    assert key_seed(0, "order", 1, 2) == 0x7FDB267B15051BDA
    assert 0 <= key_seed("any") < 2**63


@pytest.mark.parametrize(
    "other", [(4, "noise", 1, 20), (3, "order", 1, 20), (3, "noise", 2, 20), (3, "noise", 1, 21), (3, "noise", 20, 1)]
)
def test_a_seed_depends_on_every_part_of_its_key_and_their_order(other):
    assert key_seed(*other) != key_seed(*KEY)


def test_a_number_and_its_text_are_different_keys():
    assert key_seed("1") != key_seed(1)


def test_parts_of_a_key_do_not_run_together():
    assert key_seed(1, 23) != key_seed(12, 3)
    assert key_seed("a", "b") != key_seed("ab")
    assert key_seed("a", "b") != key_seed("a/b")


def test_no_text_can_imitate_two_parts_of_a_key():
    assert key_seed("a/str:b") != key_seed("a", "b")


def test_a_keyed_generator_gives_the_draws_of_its_key():
    first = torch.rand(4, generator=keyed_generator(*KEY))
    torch.rand(3)
    assert torch.equal(torch.rand(4, generator=keyed_generator(*KEY)), first)
    assert not torch.equal(torch.rand(4, generator=keyed_generator(3, "noise", 1, 21)), first)


def test_seeded_makes_dropout_and_initialisation_depend_on_the_key_alone():
    def draw(*key: int | str) -> list[torch.Tensor]:
        with seeded("cpu", *key):
            return [nn.functional.dropout(torch.ones(64)), nn.Linear(4, 4).weight.detach()]

    first = draw(*KEY)
    torch.rand(3)
    assert all(torch.equal(a, b) for a, b in zip(draw(*KEY), first, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(draw(3, "noise", 1, 21), first, strict=True))


@pytest.mark.parametrize("fails", [False, True])
def test_seeded_puts_the_global_generator_back(fails):
    before = torch.get_rng_state()
    try:
        with seeded("cpu", *KEY):
            torch.rand(5)
            assert not torch.equal(torch.get_rng_state(), before)
            if fails:
                raise KeyError
    except KeyError:
        assert fails
    assert torch.equal(torch.get_rng_state(), before)
