"""The loss a few positions at a time: the values and gradients of the whole, without the whole's logits."""

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from diffusionblocks.families import token_loss
from diffusionblocks.families.token_loss import token_losses
from diffusionblocks.marks import PAD
from diffusionblocks.randomness import keyed_generator

B, N, D, V = 3, 7, 8, 37
"""21 positions; no other size is V."""


def example() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """States, tokens of which some are padding, and weights of the head; a unit normal in each."""
    generator = keyed_generator(0, "token loss")
    states = torch.randn(B, N, D, generator=generator)
    y = torch.randint(0, V, (B, N), generator=generator)
    y[0, 4:], y[2, 1:] = PAD, PAD
    return states.requires_grad_(), y, torch.randn(V, D, generator=generator).requires_grad_()


def losses_and_gradients(chunk: int | None) -> list[torch.Tensor]:
    states, y, weight = example()
    losses = token_losses(states, y, lambda some: some @ weight.T, V, chunk)
    # A different weight for each, so that no gradient could stand for another's.
    upstream = torch.linspace(0.5, 2.0, B * N).view(B, N)
    return [losses.detach(), *torch.autograd.grad(losses, (states, weight), upstream)]


class Sizes(TorchDispatchMode):
    """Writes down the size of every tensor of vocabulary width (on either side) that an operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            # The head's own weight and its gradient have V rows, of width D.
            if isinstance(tensor, torch.Tensor) and V in tensor.shape and D not in tensor.shape:
                self.sizes.append(tensor.numel())
        return out


def largest(chunk: int | None) -> int:
    states, y, weight = example()
    with Sizes() as sizes:
        token_losses(states, y, lambda some: some @ weight.T, V, chunk).sum().backward()
    assert states.grad is not None
    assert weight.grad is not None
    return max(sizes.sizes)


@pytest.mark.parametrize("chunk", [1, 4, 7, 20, 21, 1000, None])
def test_chunks_have_the_values_and_gradients_of_the_whole(chunk):
    """4 and 20 leave a smaller last chunk."""
    states, y, weight = example()
    plain = functional.cross_entropy((states @ weight.T).flatten(0, 1), y.flatten(), reduction="none", ignore_index=PAD)
    plain = plain.view(B, N)
    expected = [
        plain.detach(),
        *torch.autograd.grad(plain, (states, weight), torch.linspace(0.5, 2.0, B * N).view(B, N)),
    ]
    for found, wanted in zip(losses_and_gradients(chunk), expected, strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("chunk", [1, 4, None])
def test_padding_has_loss_0_and_no_gradient(chunk):
    _, y, _ = example()
    losses, states, _ = losses_and_gradients(chunk)
    assert losses[y == PAD].abs().max() == 0
    assert losses[y != PAD].min() > 0
    assert states[y == PAD].abs().max() == 0
    assert states[y != PAD].abs().amax(dim=-1).min() > 0


@pytest.mark.parametrize("chunk", [1, 4, 7])
def test_all_padding_is_0_with_a_graph(chunk):
    states, y, weight = example()
    losses = token_losses(states, torch.full_like(y, PAD), lambda some: some @ weight.T, V, chunk)
    assert losses.abs().max() == 0
    losses.sum().backward()
    assert states.grad.abs().max() == 0
    assert weight.grad.abs().max() == 0


@pytest.mark.parametrize("chunk", [1, 4, 7])
def test_no_more_logits_than_a_chunks_ever_exist_at_once(chunk):
    assert largest(chunk) == chunk * V


def test_without_chunks_all_of_them_exist():
    """The measurement sees what it should."""
    assert largest(None) == B * N * V


def test_the_chunk_follows_from_the_vocabulary(monkeypatch):
    monkeypatch.setattr(token_loss, "CHUNK_LOGITS", 5 * V + 3)
    assert largest(None) == 5 * V
    monkeypatch.setattr(token_loss, "CHUNK_LOGITS", V - 1)  # one position at least
    assert largest(None) == V


def test_logits_of_half_precision_are_reduced_in_fp32():
    states, y, weight = (each.detach() for each in example())
    states, weight = states.bfloat16(), weight.bfloat16()
    found = token_losses(states, y, lambda some: some @ weight.T, V, 4)
    assert found.dtype == torch.float32
    expected = functional.cross_entropy(
        (states @ weight.T).double().flatten(0, 1), y.flatten(), reduction="none", ignore_index=PAD
    )
    torch.testing.assert_close(found.double(), expected.view(B, N), rtol=1e-5, atol=1e-5)
