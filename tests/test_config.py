"""Settings are checked before anything runs; what is wrong becomes one line that names the setting and its value."""

import json
import math

import pytest
from pydantic import BaseModel, ValidationError

from diffusionblocks.config import VitConfig, read_json, validate
from diffusionblocks.errors import InputError
from diffusionblocks.presets import PAPER
from diffusionblocks.training.config import TrainingConfig


def refusal(model: type[BaseModel], source: str = "", **values) -> str:
    with pytest.raises(InputError) as error:
        validate(model, values, source)
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("num_blocks", [0, -1, 2.5, "three", None, math.nan, math.inf]),
        ("gamma", [-0.1, "wide", math.nan]),
        ("conditioning_features", [0, 1, 8.5]),
        ("sigma_data", [0.0, -1.0, math.nan]),
        ("z_dropout", [-0.1, 1.0, math.nan]),
        ("targets_seed", [-1, 0.5]),
        ("num_sampling_steps", [0, 2.5]),
        ("p_mean", ["low", None]),
        ("sigma_max", ["loud", None]),
        ("family", ["unet", 1]),
        ("cut", ["halves"]),
        ("conditioning", ["film"]),
        ("targets", ["learned"]),
        ("weight", [1.0]),
        ("readout", ["logits"]),
        ("spacing", ["even"]),
        ("start", ["one"]),
        ("format_version", [2]),
        ("layer_split", [3, "4,4,4"]),
    ],
)
def test_a_bad_value_of_a_model_is_refused_by_name(setting, values):
    for value in values:
        assert refusal(VitConfig, **{setting: value}).startswith(f"{setting}={value!r}: expected ")


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("seed", [-1, 0.5, "x"]),
        ("updates", [0, -5, 2.5]),
        ("batch_size", [0, 12.5]),
        ("micro_batches", [0]),
        ("lr", [0.0, -1e-3, math.nan, "fast"]),
        ("lr_final", [-1e-3]),
        ("warmup", [-0.1, 1.0]),
        ("weight_decay", [-0.1, math.nan]),
        ("beta1", [1.0, -0.1]),
        ("beta2", [1.0]),
        ("clip_norm", [0.0, -1.0]),
        ("ema_decay", [1.0, -0.1]),
        ("precision", ["fp16", 16]),
        ("checkpointing", ["often"]),
        ("rotate_every", [0]),
        ("checkpoint_every", [0]),
        ("num_workers", [-1]),
    ],
)
def test_a_bad_value_of_training_is_refused_by_name(setting, values):
    for value in values:
        message = refusal(TrainingConfig, **{"updates": 10, setting: value})
        assert message.startswith(f"{setting}={value!r}: expected ")


def test_epochs_of_no_length_are_refused():
    assert refusal(TrainingConfig, epochs=0).startswith("epochs=0: expected ")


def test_a_bad_part_of_a_setting_is_refused_by_its_place():
    assert refusal(VitConfig, layer_split=[4, 2.5]).startswith("layer_split.1=2.5: expected ")


@pytest.mark.parametrize(
    ("model", "values"),
    [
        (VitConfig, {"gamma": math.inf}),
        (VitConfig, {"p_mean": math.nan}),
        (VitConfig, {"sigma_data": math.inf}),
        (TrainingConfig, {"lr": math.inf}),
        (TrainingConfig, {"epochs": math.inf, "updates": None}),
    ],
)
def test_a_setting_that_is_not_finite_is_refused(model, values):
    values = {"updates": 1, **values} if model is TrainingConfig else values
    assert next(iter(values.keys() - {"updates"})) in refusal(model, **values)


@pytest.mark.parametrize(("model", "setting"), [(VitConfig, "num_blocks"), (TrainingConfig, "updates")])
def test_a_truth_value_is_no_count(model, setting):
    assert refusal(model, **{setting: True}).startswith(f"{setting}=True: expected ")


@pytest.mark.parametrize(
    ("model", "unknown", "near"),
    [
        (VitConfig, "num_block", "num_blocks"),
        (VitConfig, "blocks", "num_blocks"),
        (VitConfig, "sigmamax", "sigma_max"),
        (TrainingConfig, "learning_rate", "lr"),
        (TrainingConfig, "batchsize", "batch_size"),
    ],
)
def test_an_unknown_setting_is_refused_with_a_suggestion(model, unknown, near):
    message = refusal(model, **{unknown: 3})
    assert message.startswith(f"{unknown}=3: expected a known setting (")
    assert near in message


def test_a_message_says_where_the_setting_came_from():
    assert refusal(VitConfig, source="run/config.json", num_blocks=0).endswith("; see run/config.json")


def test_fewer_steps_than_blocks_are_refused_with_what_to_do():
    message = refusal(VitConfig, num_blocks=4, num_sampling_steps=3)
    assert message == "num_sampling_steps=3: expected at least one step for each of the 4 blocks; take 4 or more"


def test_a_preconditioned_readout_needs_targets_as_wide_as_the_network():
    message = refusal(VitConfig, readout="preconditioned", targets="simplex")
    assert message.startswith("readout='preconditioned': expected targets=random")
    assert "set targets, or readout=hidden" in message
    assert validate(VitConfig, {"readout": "preconditioned", "targets": "random"}).readout == "preconditioned"


@pytest.mark.parametrize("values", [{}, {"updates": 5, "epochs": 1.0}])
def test_a_budget_is_either_updates_or_epochs(values):
    message = refusal(TrainingConfig, **values)
    assert message.startswith(f"updates={values.get('updates')!r}: expected either updates or epochs (epochs=")
    assert message.endswith("; set one")


@pytest.mark.parametrize(
    ("values", "start"),
    [
        ({"batch_size": 4, "micro_batches": 5}, "micro_batches=5: expected at most batch_size=4"),
        ({"lr": 1e-3, "lr_final": 1e-2}, "lr_final=0.01: expected at most lr=0.001"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(values, start):
    assert refusal(TrainingConfig, updates=1, **values) == start


def test_what_is_no_mapping_is_refused():
    with pytest.raises(InputError, match=r"^VitConfig=\[3\]: expected a valid dictionary"):
        validate(VitConfig, [3])  # pyright: ignore[reportArgumentType]


def test_defaults_and_the_papers_settings_are_valid():
    assert validate(VitConfig, {}) == VitConfig()
    paper = validate(VitConfig, PAPER["vit"])
    assert (paper.p_mean, paper.p_std, paper.sigma_min, paper.sigma_max) == (-1.2, 1.2, 0.002, 80.0)
    assert (paper.sigma_data, paper.gamma, paper.num_blocks, paper.num_sampling_steps) == (0.5, 0.05, 3, 4)


@pytest.mark.parametrize(
    "config",
    [
        VitConfig(num_blocks=2, layer_split=(5, 7), sigma_data=0.1, num_sampling_steps=6),
        TrainingConfig(epochs=2.5, lr=0.1 + 0.2),
    ],
)
def test_a_config_survives_json(config):
    assert validate(type(config), json.loads(config.model_dump_json())) == config


@pytest.mark.parametrize(("config", "setting"), [(VitConfig(), "num_blocks"), (TrainingConfig(updates=1), "lr")])
def test_a_config_cannot_be_changed(config, setting):
    with pytest.raises(ValidationError, match="frozen"):
        setattr(config, setting, 5)


def test_read_json_reads_a_file(tmp_path):
    (tmp_path / "a.json").write_text('{"num_blocks": 3, "name": "\u00e9"}', encoding="utf-8")
    assert read_json(tmp_path / "a.json") == {"num_blocks": 3, "name": "\u00e9"}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "expected a readable JSON file; No such file"),
        (b'{"a": 1,\n oops}', "expected valid JSON in UTF-8; .*line 2 column 2"),
        (b"", "expected valid JSON in UTF-8"),
        (b'{"a": "\xff"}', "expected valid JSON in UTF-8; .*0xff in position 7"),
    ],
    ids=["missing", "syntax", "empty", "encoding"],
)
def test_a_file_that_is_no_json_is_refused_in_one_line(tmp_path, content, expected):
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=expected) as error:
        read_json(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_an_error_is_one_line_of_setting_value_expectation_and_remedy():
    error = InputError("lr", "a\nb", "a number\n  above 0", "lower it")
    assert str(error) == r"lr='a\nb': expected a number above 0; lower it"
    assert str(InputError("lr", -1, "a number above 0")) == "lr=-1: expected a number above 0"
