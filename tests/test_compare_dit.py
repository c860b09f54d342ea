"""`dblocks compare` for generators: the same rows as the commands give, with FID; guidance scores a run again."""

import functools
import json

import pytest

from diffusionblocks import InputError
from diffusionblocks.cli import main
from diffusionblocks.compare import compare
from diffusionblocks.comparison import Comparison
from diffusionblocks.evaluation.costs import StepTime
from diffusionblocks.evaluation.features import train_features

TINY = {
    **{"hidden_size": "16", "num_layers": "3", "num_heads": "2", "num_blocks": "3", "patch_size": "4"},
    **{"updates": "12", "batch_size": "16", "rotate_every": "3", "checkpoint_every": "3", "num_sampling_steps": "6"},
}
FLAGS = [word for name, value in TINY.items() for word in (f"--{name.replace('_', '-')}", value)]
KEYS = ("method", "variant", "num_blocks", "budget", "updates")


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Times are no matter of a test, nor is how good the classifier of the features is."""

    def times(configs, device):
        return {name: StepTime(((1.0,) * 3,) * (3 if "blocks" in name else 1)) for name in configs}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("diffusionblocks.compare.step_times", times)
        patch.setattr("diffusionblocks.evaluation.score.train_features", functools.partial(train_features, updates=20))
        yield


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    variants = ("guidance 2", "overlap 0")
    return Comparison("dit-digits", TINY, seeds=1, variants=variants, samples=150, sampling_seeds=2, split="validation")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("comparison") / "out"


@pytest.fixture(scope="module")
def result(comparison, folder):
    return compare(comparison, folder, progress=False)


def test_the_rows(result, folder):
    assert json.loads((folder / "compare.json").read_text()) == result
    assert result["metric"] == "fid"
    assert result["sampling"] == {"sampler": "dpmpp-2m", "num_sampling_steps": 6, "samples": 150, "seeds": 2}
    main_rows = [
        ("end-to-end", "", 3, "layer-evaluations", 12),
        ("blocks", "", 3, "layer-evaluations", 12),
        ("blocks", "", 3, "samples", 4),
        ("blocks+trunk", "", 3, "layer-evaluations", 12),
        ("blocks+trunk", "", 3, "samples", 4),
        ("shallow", "", 3, "layer-evaluations", 12),
        ("shallow", "", 3, "layer-evaluations", 36),
    ]
    guided = [
        (method, "guidance 2", *rest) for method, _, *rest in main_rows if not {method, *rest} & {"samples", "shallow"}
    ]
    others = [("blocks", "overlap 0", 3, "layer-evaluations", 12), ("checkpointing", "", 3, "layer-evaluations", 5)]
    found = [tuple(row[key] for key in KEYS) for row in result["rows"]]
    assert sorted(found) == sorted([*main_rows, *guided, *others])
    for row in result["rows"]:
        if row["method"] != "checkpointing":
            assert row["metrics"].keys() == {"fid", "fid_se", "kid", "precision", "recall", "denoising_error"}
            assert row["features"] == result["features"]["sha256"]
            assert row["images_per_second"] > 0


def test_costs(result):
    rows = {tuple(row[key] for key in KEYS): row for row in result["rows"]}
    whole, blocks = (rows[method, "", 3, "layer-evaluations", 12] for method in ("end-to-end", "blocks"))
    guided = rows["blocks", "guidance 2", 3, "layer-evaluations", 12]
    # The embeddings and the readout, which every block has, weigh much in a network of width 16.
    assert 1 / 3 < blocks["flops_per_step"] / whole["flops_per_step"] < 0.45
    assert blocks["flops_per_image"] == 6 * blocks["flops_per_step"]
    assert guided["flops_per_image"] == 2 * blocks["flops_per_image"]
    assert whole["layer_memory_bytes"]["weights"] == 3 * blocks["layer_memory_bytes"]["weights"]
    (checkpointing,) = (row for row in result["rows"] if row["method"] == "checkpointing")
    assert checkpointing["metrics"]["largest_loss_difference"] < 1e-6


def test_a_row_is_what_the_commands_give(result, folder, tmp_path):
    run, features = str(tmp_path / "run"), ["--features", str(folder / "features")]
    assert main(["train", "dit-digits", "--run", run, *FLAGS]) == 0
    evaluate = ["eval", run, "--split", "validation", "--samples", "150", "--sampling-seeds", "2", *features]
    for guidance, variant in (("1", ""), ("2", "guidance 2")):
        assert main([*evaluate, "--guidance", guidance]) == 0
        scores = json.loads((tmp_path / "run/eval-validation.json").read_text())
        (row,) = (
            row
            for row in result["rows"]
            if (row["method"], row["variant"], row["budget"]) == ("blocks", variant, "layer-evaluations")
        )
        assert row["metrics"] == {name: scores[name] for name in row["metrics"]}
    assert (tmp_path / "run/eval-validation.png").exists()


def test_nothing_is_trained_twice(result, comparison, folder, monkeypatch):
    monkeypatch.setitem(compare.__globals__, "make_trainers", None)
    monkeypatch.setitem(compare.__globals__, "score_run", None)
    assert compare(comparison, folder, progress=False)["rows"] == result["rows"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"methods": ("shallow-ensemble",)}, "methods='shallow-ensemble': expected one of end-to-end, checkpointing"),
        ({"presets": ("paper",)}, "presets='paper'"),
        ({"variants": ("guidance 3",)}, "variants='guidance 3'"),
    ],
)
def test_what_a_generator_does_not_have_is_refused(settings, message):
    with pytest.raises(InputError, match=message):
        Comparison("dit-digits", **settings)


def test_another_number_of_blocks_has_costs_of_its_own():
    entries = Comparison("dit-digits", seeds=1).entries()
    configs = {entry.cost: entry.config for entry in entries}
    assert {name: config.num_blocks for name, config in configs.items() if name.startswith("blocks")} == {
        **{"blocks": 3, "blocks, B = 2": 2, "blocks, B = 6": 6}
    }
    for entry in entries:
        same = configs[entry.cost]
        assert (same.method, same.num_blocks, same.depth()) == (
            *(entry.config.method, entry.config.num_blocks, entry.config.depth()),
        )


def test_a_classifier_has_no_variants():
    with pytest.raises(InputError, match="variants='overlap 0': expected none"):
        Comparison("vit-digits", variants=("overlap 0",))
