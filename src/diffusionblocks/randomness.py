"""Randomness by key: every draw depends on what it is for, never on what was drawn before it.

A key such as (seed, "noise", block, update) names a draw, so a block gives the same result whether it trains alone, in
turn with others, or after a restart, and no generator state needs to be stored.
"""

import contextlib
import hashlib
from collections.abc import Iterator

import torch


def key_seed(*key: int | str) -> int:
    """A seed in [0, 2^63) that depends on every part of the key and nothing else."""
    parts = tuple(part if isinstance(part, str) else int(part) for part in key)
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def keyed_generator(*key: int | str) -> torch.Generator:
    """A CPU generator seeded from the key; CPU draws are the same on every machine."""
    return torch.Generator().manual_seed(key_seed(*key))


@contextlib.contextmanager
def seeded(device: torch.device | str, *key: int | str) -> Iterator[None]:
    """Seed the global generators (dropout and initialisation draw from them) inside, and put them back after."""
    device = torch.device(device)
    devices = [device.index or 0] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        seed = key_seed(*key)
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed(seed)
        yield
