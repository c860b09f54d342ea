"""MAUVE: how near generated text is to held-out text in the hidden states of a language model.

MAUVE (Pillutla et al. 2021) clusters the hidden states of both sides together and takes the area under a curve of KL
divergences between their histograms over the clusters. It depends on the language model, the scaling, the number of
clusters, the number and length of the texts, and a little on the seed of k-means: only values at equal ones compare.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from diffusionblocks.errors import InputError
from diffusionblocks.evaluation.judge import Judge

Pooling = Literal["last", "mean"]
POOLINGS = ("last", "mean")
SCALING = 5.0
"""The paper's c: the divergences are multiplied by it before they are exponentiated."""
SEEDS = (0, 1, 2, 3, 4)
TEXTS_A_BUCKET = 10
"""Texts of the smaller side to a cluster, as in the paper."""
FEWEST = 20
"""Two clusters of 10."""


class HiddenFeatures:
    """A text as the hidden state of a judge's last layer, after its final norm.

    Args:
        judge: the language model.
        pooling: "last": at the text's last token, as in the paper; "mean": mean over its tokens.
    """

    def __init__(self, judge: Judge, pooling: Pooling = "last"):
        if pooling not in POOLINGS:
            raise InputError("pooling", pooling, f"one of {POOLINGS}")
        self.judge, self.pooling = judge, pooling

    def describe(self) -> dict[str, str]:
        """What has to stand beside every number from these features."""
        return {**self.judge.describe(), "pooling": self.pooling}

    @torch.no_grad()
    def __call__(self, texts: Sequence[str], batch_size: int = 8) -> Tensor:
        """Features of texts, of which the first `judge.context` tokens count, with no BOS token before them.

        Args:
            texts: none of them without tokens.
            batch_size: texts at a time; the result does not depend on it beyond rounding.

        Returns:
            float32, shape (N, F), on the CPU.

        Raises:
            InputError: a text without tokens.
        """
        rows = [self.judge.tokens(text)[: self.judge.context] for text in texts]
        for k, row in enumerate(rows):
            if not row:
                raise InputError(f"texts[{k}]", texts[k], "a text of at least one token", "leave empty texts out")
        # Texts of one length together, so that little is computed for pads.
        order = sorted(range(len(rows)), key=lambda k: len(rows[k]))
        parts = [order[k : k + batch_size] for k in range(0, len(order), batch_size)]
        pooled = [self._pooled([rows[k] for k in part]) for part in parts]
        features = torch.cat(pooled) if pooled else torch.empty(0, self.judge.network.config.hidden_size)
        return features[torch.tensor(order, dtype=torch.long).argsort()]

    def _pooled(self, rows: list[list[int]]) -> Tensor:
        output, _ = self.judge.run(self.judge.network.base_model, rows)
        states = output.last_hidden_state.float().cpu()
        if self.pooling == "last":
            return torch.stack([state[len(row) - 1] for state, row in zip(states, rows, strict=True)])
        return torch.stack([state[: len(row)].mean(dim=0) for state, row in zip(states, rows, strict=True)])


def mauve_score(
    p_features: Tensor, q_features: Tensor, scaling: float = SCALING, seed: int = 0, num_buckets: int | None = None
) -> float:
    """MAUVE by the package mauve-text; the same seed and features give the same value.

    Args:
        p_features: features of held-out text, shape (N, F), finite.
        q_features: features of generated text, shape (M, F), finite.
        scaling: c > 0; the larger, the lower the score.
        seed: of PCA and k-means.
        num_buckets: clusters, at least 2; None: a tenth of the smaller side.

    Returns:
        Near 0 (no cluster holds texts of both sides) to 1 (equal shares of all clusters).

    Raises:
        InputError: features of other shapes or not finite, fewer than 20 texts or than clusters on a side, mauve-text
            missing.
    """
    _check(p_features, q_features)
    fewest = min(len(p_features), len(q_features))
    buckets = max(2, round(fewest / TEXTS_A_BUCKET)) if num_buckets is None else num_buckets
    if not 2 <= buckets <= fewest:
        raise InputError("num_buckets", buckets, f"2 clusters to {fewest}, the texts of the smaller side")
    if not scaling > 0:
        raise InputError("scaling", scaling, "a number above 0")
    try:
        from mauve import compute_mauve  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        todo = "pip install 'diffusionblocks[text-metrics]'"
        raise InputError("mauve", str(error), "the package mauve-text, which is not installed", todo) from error
    p, q = (features.detach().cpu().double().numpy() for features in (p_features, q_features))
    options: dict[str, Any] = {"num_buckets": buckets, "mauve_scaling_factor": scaling, "seed": seed}
    return float(compute_mauve(p, q, **options).mauve)


def mauve_over_seeds(
    p_features: Tensor,
    q_features: Tensor,
    scaling: float = SCALING,
    seeds: Sequence[int] = SEEDS,
    num_buckets: int | None = None,
) -> dict[str, Any]:
    """MAUVE of one set of samples over several seeds of k-means.

    Returns:
        mean, sd: over the seeds; sd is None for one seed.
        values: of each seed.

    Raises:
        InputError: as `mauve_score`; no seed.
    """
    if not seeds:
        raise InputError("seeds", list(seeds), "at least one seed")
    values = [mauve_score(p_features, q_features, scaling, seed, num_buckets) for seed in seeds]
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return {"mean": float(np.mean(values)), "sd": spread, "values": values}


def _check(p_features: Tensor, q_features: Tensor) -> None:
    for name, features in (("p_features", p_features), ("q_features", q_features)):
        shape = tuple(features.shape)
        if len(shape) != 2 or not features.is_floating_point() or shape[1] < 1:
            raise InputError(name, (features.dtype, shape), "floats of shape (N, F)", "extract features first")
        if len(features) < FEWEST:
            raise InputError(name, len(features), f"at least {FEWEST} texts", "generate more")
        if not bool(features.isfinite().all()):
            raise InputError(name, "not finite", "finite numbers", "look at these texts")
    if p_features.shape[1] != q_features.shape[1]:
        expected = f"{p_features.shape[1]} features a text, as p_features have"
        raise InputError("q_features", tuple(q_features.shape), expected, "take both from one model")
