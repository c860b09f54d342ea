"""What a comparison is about: its metric, with unit and direction, and what else a method's row shows beside it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diffusionblocks.errors import InputError


@dataclass(frozen=True)
class Column:
    """A further column of the table.

    Attributes:
        heading: its name with its unit.
        source: what it shows: a name in a row's "metrics", or in the row itself for a ratio or a cost.
        scale: what the value is multiplied with.
        digits: decimals.
        of_blocks: only blocks have it.
        page_only: it is left out in the terminal, where there is little room.
    """

    heading: str
    source: str
    scale: float = 1
    digits: int = 2
    of_blocks: bool = False
    page_only: bool = False


@dataclass(frozen=True)
class Metric:
    """What methods are compared by.

    Attributes:
        name: its name in a row's "metrics".
        label: what the reader calls it.
        unit: its unit, or "".
        scale: what a stored value is multiplied with to have this unit.
        digits: decimals.
        lower_is_better: its direction.
        columns: further values of a row's "metrics".
        ratios: values of a row that are shown as a ratio to end to end's.
        costs: values of a row that are shown as they are.
        note: what has to be said of the rows, in sentences.
        is_bound: whether a value is an upper bound of what it is about.
    """

    name: str
    label: str
    unit: str
    scale: float
    digits: int
    lower_is_better: bool
    columns: tuple[Column, ...]
    ratios: tuple[Column, ...] = ()
    costs: tuple[Column, ...] = ()
    note: str = ""
    is_bound: bool = False

    @property
    def title(self) -> str:
        """The label as a heading begins."""
        return self.label[:1].upper() + self.label[1:]

    @property
    def difference_unit(self) -> str:
        """The unit of a difference: percentages differ by points."""
        return "points" if self.unit == "%" else self.unit

    @property
    def heading(self) -> str:
        return _heading(self.label, self.unit)

    @property
    def spread(self) -> str:
        """Heading of the standard deviation."""
        return _heading("sd", self.difference_unit)

    @property
    def against(self) -> str:
        """Heading of the difference to end to end."""
        return _heading("minus end to end", self.difference_unit)

    @property
    def direction(self) -> str:
        """What to add where a reader may take a lower value for a worse one."""
        of_bound = "these are upper bounds, and " if self.is_bound else ""
        return f"; {of_bound}lower is better" if self.lower_is_better else ""

    @property
    def has_chain(self) -> bool:
        """Whether blocks have a chain whose gain over the first of them is known."""
        return any(column.source == "chain_gain" for column in self.columns)


OF_TEXT = (
    Column("n-gram divergence, bits", "ngram_divergence", digits=4),
    Column("distinct-2", "distinct_2", digits=3),
    Column("entropy, bits", "entropy", digits=3, page_only=True),
    Column("repetition", "repetition", digits=3, page_only=True),
    Column("generative perplexity", "generative_perplexity", digits=1, page_only=True),
    Column("MAUVE", "mauve", digits=3, page_only=True),
)
"""Statistics of generated text."""

METRICS = {
    "vit": Metric(
        "accuracy",
        "accuracy",
        "%",
        scale=100,
        digits=2,
        lower_is_better=False,
        columns=(
            Column("cross-entropy, nats", "cross_entropy", digits=4, page_only=True),
            Column("block 0, %", "block0_accuracy", 100, of_blocks=True),
            Column("chain gain, points", "chain_gain", 100, of_blocks=True),
            Column("average, %", "average_accuracy", 100, of_blocks=True),
        ),
        note="The accuracy of blocks is that of the preset's answer: the average of the blocks at z = 0 in the default "
        "preset, the chain's last in the paper's; the chain's gain is shown for both.",
    ),
    "dit": Metric(
        "fid",
        "FID",
        "",
        scale=1,
        digits=2,
        lower_is_better=True,
        columns=(
            Column("KID", "kid", digits=4),
            Column("precision", "precision", digits=3),
            Column("recall", "recall", digits=3),
            Column("denoising error", "denoising_error", digits=4),
            Column("se over sampling seeds", "fid_se", page_only=True),
        ),
        ratios=(
            Column("FLOPs of a denoising step, ratio", "flops_per_step", digits=3),
            Column("images/s when sampling, ratio", "images_per_second"),
        ),
        costs=(
            Column("10^6 FLOPs of an image", "flops_per_image", 1e-6, 0, page_only=True),
            Column("images/s when sampling", "images_per_second", digits=1, page_only=True),
        ),
        note="A lower FID is better. There is no ensemble of shallow networks among the controls: an ensemble averages "
        "answers, and denoisers of images averaged at every step are another model. Ratios are to end to end.",
    ),
    "masked-lm": Metric(
        "bits_per_character",
        "likelihood bound",
        "bits/char",
        scale=1,
        digits=3,
        lower_is_better=True,
        columns=(
            Column("se over windows, bits/char", "se", digits=4, page_only=True),
            Column("bits per token", "bits_per_token", digits=3, page_only=True),
            Column("block 0, bits per masked token", "block0_bits", digits=3, page_only=True),
            *OF_TEXT,
        ),
        note="Bits per character are an upper bound on the negative log-likelihood of held-out text, an estimate of "
        "the NELBO; lower is better. The estimator and its random numbers are the same for every method. Each block is "
        "asked about its own range of masked shares only, and the blocks' shares add up to the bound. The ensemble's "
        "answer is the average of its members' log-probabilities.",
        is_bound=True,
    ),
    "causal-lm": Metric(
        "bits_per_character",
        "negative log-likelihood",
        "bits/char",
        scale=1,
        digits=3,
        lower_is_better=True,
        columns=(
            Column("se over windows, bits/char", "se", digits=4, page_only=True),
            Column("bits per token", "bits_per_token", digits=3, page_only=True),
            Column("block 0, bits/char", "block0_bits", digits=3, page_only=True),
            Column("average, bits/char", "average_bits", digits=3, page_only=True),
            Column("chain (bound), bits/char", "chain_bits", digits=3),
            Column("block 0 from noise (bound), bits/char", "noisy_start_bits", digits=3, page_only=True),
            *OF_TEXT,
        ),
        ratios=(Column("tokens/s when generating, ratio", "tokens_per_second"),),
        costs=(
            Column("tokens/s when generating", "tokens_per_second", digits=1, page_only=True),
            Column("readout's share of multiplications, %", "head_share", 100, 1, page_only=True),
        ),
        note="Bits per character are the negative log-likelihood of held-out text; lower is better. It is exact for "
        "every answer at z = 0. The chain of blocks and a noisy start have an upper bound instead: rows that answer "
        "with the chain, as in the paper's preset, are marked as bounds, and so is a difference from them. The "
        "ensemble of shallow networks averages its members' log-probabilities. Blocks answer, but for the paper's "
        "preset, with the average of their log-probabilities at z = 0, which is an ensemble of shallow networks too. "
        "The target is one discrete token, to which noise adds Bayes' rule alone: what a chain knows of the next token "
        "is what its blocks know without z, so it has no more to give than its best block.",
    ),
}
"""What each family is compared by."""

_FAMILIES = {"accuracy": "vit", "fid": "dit", "bits_per_character": "masked-lm"}
"""Of comparisons that do not name their family, the one that has such a metric."""


def metric_of(stored: Mapping[str, Any]) -> Metric:
    """The metric of what `dblocks compare` stores; accuracy where neither a family nor a metric is named.

    Raises:
        InputError: a family or a metric that this version does not know.
    """
    name = stored.get("metric", "accuracy")
    if "family" not in stored and name not in _FAMILIES:
        raise InputError("metric", name, f"one of {', '.join(_FAMILIES)}")
    family = stored.get("family") or _FAMILIES[name]
    if family not in METRICS:
        raise InputError("family", family, f"one of {', '.join(METRICS)}")
    return METRICS[family]


def _heading(text: str, unit: str) -> str:
    return f"{text}, {unit}" if unit else text
