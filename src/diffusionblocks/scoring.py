"""How the runs of a comparison are scored, family by family: the options of the score, and what of it a row keeps."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from diffusionblocks.comparison import Comparison, Entry


class Scoring(ABC):
    """What a comparison asks of a family."""

    metric: ClassVar[str]

    def options(self, comparison: Comparison, entry: Entry, folder: Path) -> Any:
        """How a run is scored; None: as its settings say."""
        return None

    def is_as_asked(self, result: dict[str, Any], comparison: Comparison) -> bool:
        """Whether a stored score was made in the way that the comparison asks for."""
        return True

    def header(self, result: dict[str, Any], comparison: Comparison) -> dict[str, Any]:
        """What all rows have in common, from the score of the first."""
        return {"metric": self.metric}

    @abstractmethod
    def metrics(self, result: dict[str, Any], entry: Entry) -> dict[str, Any]:
        """The numbers of a row."""

    def further(self, result: dict[str, Any], costs: dict[str, Any]) -> dict[str, Any]:
        """What a row has besides."""
        return {}


class ClassifierScoring(Scoring):
    """Accuracy of classifiers."""

    metric = "accuracy"

    def metrics(self, result: dict[str, Any], entry: Entry) -> dict[str, Any]:
        scores = result["members"][0] if entry.is_member else result
        metrics = {name: scores[name] for name in ("accuracy", "cross_entropy")}
        if "blocks" in result:
            metrics |= {
                "block0_accuracy": result["blocks"][0]["alone"]["accuracy"],
                "chain_accuracy": result["chain"]["accuracy"],
                "chain_gain": result["chain_gain"],
                "average_accuracy": result["average"]["accuracy"],
            }
        return metrics


class GeneratorScoring(Scoring):
    """FID of generators of images."""

    metric = "fid"

    def options(self, comparison: Comparison, entry: Entry, folder: Path) -> Any:
        # The family's package is an extra, so it is imported for its runs alone.
        from diffusionblocks.evaluation.generation import GenerationOptions

        return GenerationOptions(
            samples=comparison.samples or 0,
            seeds=range(comparison.sampling_seeds),
            guidance=entry.guidance,
            features=str(folder / "features"),
        )

    def is_as_asked(self, result: dict[str, Any], comparison: Comparison) -> bool:
        return (result["samples"], len(result["sampling"])) == (comparison.samples, comparison.sampling_seeds)

    def header(self, result: dict[str, Any], comparison: Comparison) -> dict[str, Any]:
        how = {name: result[name] for name in ("sampler", "num_sampling_steps", "samples")}
        sampling = {**how, "seeds": comparison.sampling_seeds}
        return {"metric": self.metric, "sampling": sampling, "features": result["features"]}

    def metrics(self, result: dict[str, Any], entry: Entry) -> dict[str, Any]:
        return {name: result[name] for name in ("fid", "fid_se", "kid", "precision", "recall", "denoising_error")}

    def further(self, result: dict[str, Any], costs: dict[str, Any]) -> dict[str, Any]:
        row = {name: result[name] for name in ("flops_per_step", "flops_per_image")}
        speed = costs["sampling"]["median"]
        return {**row, "features": result["features"]["sha256"], "images_per_second": speed}


class LanguageScoring(Scoring):
    """Bits per character of language models, and statistics of the texts that they sample."""

    metric = "bits_per_character"

    def options(self, comparison: Comparison, entry: Entry, folder: Path) -> Any:
        from diffusionblocks.evaluation.language import LanguageOptions

        return LanguageOptions(
            samples=comparison.samples or 0,
            sampling_seeds=range(comparison.sampling_seeds),
            judge=comparison.judge,
            mauve=comparison.mauve,
        )

    def is_as_asked(self, result: dict[str, Any], comparison: Comparison) -> bool:
        sampled = result.get("sampling", {"samples": 0, "seeds": []})
        return sampled["samples"] == comparison.samples and len(sampled["seeds"]) == comparison.sampling_seeds

    def header(self, result: dict[str, Any], comparison: Comparison) -> dict[str, Any]:
        header = {"metric": self.metric, "likelihood": self.likelihood(result)}
        if "text" in result:
            text, found = result["text"], result["text"]["metrics"]
            header["sampling"] = result["sampling"]
            header["text_reference"] = {
                "of": _TEXT_METRICS,
                "compared_characters": text["compared_characters"],
                "floor": found[_TEXT_METRICS["ngram_divergence"]]["floor"],
                "held_out": {
                    name: found[of]["held_out"] for name, of in _TEXT_METRICS.items() if "held_out" in found[of]
                },
            }
        return header

    def likelihood(self, result: dict[str, Any]) -> dict[str, Any]:
        """How the likelihood was estimated."""
        return {name: result[name] for name in ("draws", "seed", "tokenizer", "characters", "windows")}

    def bits(self, result: dict[str, Any]) -> dict[str, Any]:
        """What a row has of each block's bits."""
        return {
            "block0_bits": result["blocks"][0]["bits_per_masked_token"],
            "shares": [block["bits_per_character"] for block in result["blocks"]],
        }

    def metrics(self, result: dict[str, Any], entry: Entry) -> dict[str, Any]:
        result = result["members"][0] if entry.is_member else result
        metrics = {name: result[name] for name in ("bits_per_character", "se", "bits_per_token")}
        metrics |= self.bits(result)
        if "text" in result:
            found = result["text"]["metrics"]
            metrics |= {name: found[source]["mean"] for name, source in _TEXT_METRICS.items()}
            judged = {"generative_perplexity": "perplexity", "mauve": "mauve"}
            metrics |= {name: found[source]["mean"] for name, source in judged.items() if source in found}
        return metrics


class NextTokenScoring(LanguageScoring):
    """Bits per character of autoregressive models, exact where the answer has no noise, and of texts as others."""

    def options(self, comparison: Comparison, entry: Entry, folder: Path) -> Any:
        from diffusionblocks.evaluation.causal import CausalOptions

        return CausalOptions(
            samples=comparison.samples or 0,
            sampling_seeds=range(comparison.sampling_seeds),
            judge=comparison.judge,
            mauve=comparison.mauve,
        )

    def likelihood(self, result: dict[str, Any]) -> dict[str, Any]:
        return {name: result[name] for name in ("seed", "tokenizer", "characters", "windows", "estimate")}

    def bits(self, result: dict[str, Any]) -> dict[str, Any]:
        answers = {answer["answer"]: answer["bits_per_character"] for answer in result["answers"]}
        names = {"average": "average_bits", "chain": "chain_bits", "block 0 from noise": "noisy_start_bits"}
        found = {name: answers[answer] for answer, name in names.items() if answer in answers}
        if result["blocks"]:
            found["block0_bits"] = result["blocks"][0]["bits_per_character"]
            found["each_bits"] = [block["bits_per_character"] for block in result["blocks"]]
            found["noisy_bits"] = [block["noisy_bits_per_character"] for block in result["blocks"]]
        return {"estimate": result["estimate"], **found}

    def further(self, result: dict[str, Any], costs: dict[str, Any]) -> dict[str, Any]:
        return {"tokens_per_second": costs["generation"]["median"], "head_share": costs["head_share"]}


class RecurrentScoring(NextTokenScoring):
    """As of autoregressive models, with the bits by depth."""

    def header(self, result: dict[str, Any], comparison: Comparison) -> dict[str, Any]:
        return {**super().header(result, comparison), "depth_windows": result["depth"]["windows"]}

    def bits(self, result: dict[str, Any]) -> dict[str, Any]:
        found = super().bits(result)
        if "depth" not in result:
            return found
        return {**found, "curve": result["depth"]["curve"], "early_exit": result["depth"]["early_exit"]}


_TEXT_METRICS = {
    "ngram_divergence": "divergence_characters_3",
    "distinct_2": "distinct_words_2",
    "entropy": "entropy_words",
    "repetition": "repetition_characters_8",
}
"""Which of the statistics of texts a row keeps, and under which name."""

SCORING: dict[str, Scoring] = {
    "vit": ClassifierScoring(),
    "dit": GeneratorScoring(),
    "masked-lm": LanguageScoring(),
    "causal-lm": NextTokenScoring(),
    "recurrent-lm": RecurrentScoring(),
}
"""How the runs of each family are scored."""
