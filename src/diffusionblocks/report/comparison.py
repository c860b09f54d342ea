"""A comparison as it is stored: its metric, its groups, and what it was measured with."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffusionblocks.config import read_json
from diffusionblocks.errors import InputError
from diffusionblocks.report.groups import Groups
from diffusionblocks.report.language import estimate_words, reference_words, sampling_words
from diffusionblocks.report.metrics import Metric, metric_of
from diffusionblocks.report.statistics import group


@dataclass(frozen=True)
class Stored:
    """A compare.json.

    Attributes:
        content: all that it holds.
        metric: what its rows are compared by.
        groups: its rows by their settings.
    """

    content: dict[str, Any]
    metric: Metric
    groups: Groups

    @property
    def split(self) -> str:
        return self.content.get("split", "test")


def load_comparison(path: Path) -> Stored:
    """Read a compare.json.

    Raises:
        InputError: no rows, an unknown metric, rows measured with different features, or a file of another kind.
    """
    content = read_json(path)
    try:
        groups, metric = group(content["rows"]), metric_of(content)
        if not groups:
            raise InputError("rows", [], "at least one run", f"see {path}")
        _check_features(content, path)
    except (KeyError, TypeError) as error:
        raise InputError("file", str(path), f"what `dblocks compare` writes ({error})") from None
    return Stored(content, metric, groups)


def measured_with(content: dict[str, Any]) -> list[str]:
    """What images or text were sampled and judged with, in sentences; none for a comparison of classifiers."""
    if "likelihood" in content:
        return _language_words(content)
    found = []
    if "sampling" in content:
        s = content["sampling"]
        found.append(
            f"Each figure is from {s['samples']:,} samples, drawn with {s['sampler']} in {s['num_sampling_steps']} "
            f"steps{_sampling_seeds(s['seeds'])}."
        )
    return [*found, *features_words(content)]


def _language_words(content: dict[str, Any]) -> list[str]:
    found = [estimate_words(content["likelihood"], content.get("split", "test"))]
    if "sampling" in content:
        found.append(f"Text: {sampling_words(content['sampling'], of_many=True)}")
    return [*found, *reference_words(content.get("text_reference") or {})]


def features_words(content: dict[str, Any]) -> list[str]:
    """The network whose features a FID is taken of, and that the number means nothing elsewhere."""
    if "features" not in content:
        return []
    f = content["features"]
    return [
        f"Features: {f['num_features']} of the {f['name']}, SHA-256 {f['sha256']}. A FID with these features can be "
        "compared with those of the same table only."
    ]


def _sampling_seeds(count: int) -> str:
    return f", as the mean over {count} sampling seeds" if count > 1 else ""


def _check_features(content: dict[str, Any], path: Path) -> None:
    found = {row["features"] for row in content["rows"] if "features" in row}
    if "features" in content:
        found.add(content["features"]["sha256"])
    if len(found) > 1:
        names = ", ".join(sorted(found))
        raise InputError(
            "features", names, "the same feature extractor for every row", f"score all runs anew, see {path}"
        )
