"""Evaluation: every sample is scored, and each figure is what it says, against the long way round."""

import numpy as np
import pytest
import torch
from PIL import Image

from diffusionblocks import InputError, convert
from diffusionblocks.data.images import ImageSet, to_float
from diffusionblocks.evaluation import costs
from diffusionblocks.evaluation.classification import EvalOptions, evaluate_blocks, evaluate_plain
from diffusionblocks.evaluation.predict import predict
from diffusionblocks.families.vit import PlainVit
from diffusionblocks.randomness import keyed_generator
from diffusionblocks.recipes import resolve


@pytest.fixture
def image_set(labels):
    pixels = torch.randint(0, 256, (37, 1, 8, 8), generator=keyed_generator(2), dtype=torch.uint8)
    return ImageSet(pixels, labels, ("a", "b", "c", "d"))


@pytest.fixture
def model(tiny_network):
    model = convert(tiny_network, 3).eval()
    generator = keyed_generator(0, "perturb")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def accuracy(logits, labels):
    return float((logits.argmax(-1) == labels).double().mean())


@pytest.mark.parametrize("size", [1, 10, 36, 37, 100])
def test_the_result_does_not_depend_on_the_batch_size(model, image_set, size):
    for start in ("zero", "noise"):
        whole, parts = (evaluate_blocks(model, image_set, EvalOptions(start=start, batch_size=n)) for n in (1000, size))
        for result in (whole, parts):
            del result["memory_bytes"]
        assert parts["blocks"][1]["oracle"]["cross_entropy"] == pytest.approx(
            whole["blocks"][1]["oracle"]["cross_entropy"], rel=1e-5
        )
        assert parts["cross_entropy"] == pytest.approx(whole["cross_entropy"], rel=1e-5)
        assert parts["accuracy"] == whole["accuracy"]


def test_figures_are_those_of_the_models_own_calls(model, image_set):
    x, y = to_float(image_set.images), image_set.labels
    result = evaluate_blocks(model, image_set)
    with torch.no_grad():
        assert result["accuracy"] == accuracy(model(x).logits, y)
        assert result["average"]["accuracy"] == accuracy(model.decode(x, decoding="average"), y)
        first = model.block_list[0]
        alone = first(x, torch.zeros(37, 3), torch.full((37,), 80.0))
        assert result["blocks"][0]["alone"]["accuracy"] == accuracy(alone, y)
        assert result["blocks"][0]["chain_after"]["accuracy"] == accuracy(alone, y)
        assert result["chain"]["accuracy"] == accuracy(model.decode(x, decoding="chain"), y)
    assert result["chain_gain"] == result["chain"]["accuracy"] - result["blocks"][0]["chain_after"]["accuracy"]
    for decoding in ("average", "chain"):
        chosen = evaluate_blocks(model, image_set, EvalOptions(decoding=decoding))
        assert chosen["accuracy"] == result[decoding]["accuracy"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "average"),
        ({"start": "zero"}, "chain"),
        ({"num_sampling_steps": 5}, "chain"),
        ({"start": "noise", "chains": 2}, "chain"),
        ({"start": "noise", "decoding": "average"}, "average"),
    ],
)
def test_whoever_names_a_part_of_the_chain_asks_for_it(model, image_set, options, expected):
    result = evaluate_blocks(model, image_set, EvalOptions(**options))
    assert result["decoding"] == expected
    x, noise = to_float(image_set.images), {"generator": keyed_generator(0, "start", 0)}
    if options.get("chains", 1) == 1:
        with torch.no_grad():
            assert result["accuracy"] == accuracy(model.decode(x, **noise, **options), image_set.labels)


class KnowsTheLabel(torch.nn.Module):
    """Stands in for a block's backbone; reads the label from the noisy target, or from the image's first pixel."""

    def __init__(self, block, looks_at_image):
        super().__init__()
        self.block, self.looks_at_image = block, looks_at_image

    def forward(self, x, z, sigma):
        if self.looks_at_image:
            return 50.0 * torch.nn.functional.one_hot(((x[:, 0, 0, 0] + 1) * 127.5).round().long() // 64, 4).float()
        return 50.0 * z @ self.block.targets.T


def test_oracle_and_scrambled_images_tell_a_block_that_looks_from_one_that_does_not(model, image_set, monkeypatch):
    images = image_set.images.clone()
    images[:, 0, 0, 0] = (image_set.labels * 64 + 10).to(torch.uint8)
    image_set = ImageSet(images, image_set.labels, image_set.classes)
    for looks in (True, False):
        for block in model.block_list:
            reader = KnowsTheLabel(block, looks)
            monkeypatch.setattr(block, "forward", reader.forward)
        result = evaluate_blocks(model, image_set)
        last = result["blocks"][-1]
        if looks:
            assert last["oracle"]["accuracy"] == result["accuracy"] == 1.0
            assert last["image_drop"] > 0.5
        else:
            assert last["image_drop"] == 0.0
            assert last["oracle"]["accuracy"] > result["accuracy"]
            assert last["oracle_gap"] == last["oracle"]["accuracy"] - last["chain_after"]["accuracy"]


def test_chains_from_noise_are_averaged(model, image_set):
    x, y = to_float(image_set.images), image_set.labels
    result = evaluate_blocks(model, image_set, EvalOptions(start="noise", chains=3, seed=9))
    probabilities = []
    with torch.no_grad():
        for k in range(3):
            z = model.plan.steps[0].sigma * torch.randn(37, 3, generator=keyed_generator(9, "start", k))
            for step in model.plan.steps:
                logits = model.block_list[step.block](x, z, torch.full((37,), step.sigma))
                denoised = logits.softmax(-1) @ model.targets
                z = denoised + step.sigma_next / step.sigma * (z - denoised)
            probabilities.append(logits.softmax(-1))
    assert result["accuracy"] == accuracy(sum(probabilities), y)
    with pytest.raises(InputError, match="chains"):
        evaluate_blocks(model, image_set, EvalOptions(start="zero", chains=3))


def test_more_steps_run_every_block_and_fewer_than_blocks_are_refused(model, image_set):
    assert evaluate_blocks(model, image_set, EvalOptions(num_sampling_steps=7))["num_sampling_steps"] == 7
    with pytest.raises(InputError, match="num_sampling_steps=2"):
        evaluate_blocks(model, image_set, EvalOptions(num_sampling_steps=2))


def test_a_plain_network_is_scored_on_every_sample(tiny_network, image_set):
    result = evaluate_plain(PlainVit(tiny_network), image_set, EvalOptions(batch_size=10))
    with torch.no_grad():
        logits = tiny_network(to_float(image_set.images)).logits
    assert result["accuracy"] == accuracy(logits, image_set.labels)
    assert result["cross_entropy"] == pytest.approx(float(torch.nn.functional.cross_entropy(logits, image_set.labels)))


def test_predict_names_classes_of_files_as_the_model_does(model, image_set, tmp_path):
    for block in model.block_list:
        block.backbone.config.id2label = dict(enumerate("abcd"))
    paths = []
    for k in range(3):
        paths.append(str(tmp_path / f"{k}.png"))
        Image.fromarray(np.asarray(image_set.images[k, 0])).save(paths[-1])
    answers = list(predict(model, paths, top=4))
    with torch.no_grad():
        expected = model(to_float(image_set.images[:3])).logits.softmax(-1)
    for (path, ranked), chances, name in zip(answers, expected, paths, strict=True):
        assert path == name
        assert ranked[0][0] == "abcd"[int(chances.argmax())]
        assert sum(p for _, p in ranked) == pytest.approx(1.0, abs=1e-5)
    with pytest.raises(InputError, match=r"missing\.png"):
        list(predict(model, [paths[0], str(tmp_path / "missing.png")]))


def test_step_times_are_of_every_unit_in_alternation(monkeypatch):
    """A clock that each update of a unit moves on by its number of layers: what is timed, and how often."""
    clock, turns = [0.0], []

    def step(unit, optimizer, x, y, *, update, lr, config):
        turns.append((len(unit.layers), update))
        clock[0] += len(unit.layers)
        return torch.zeros(()), torch.zeros(())

    monkeypatch.setattr(costs, "train_step", step)
    monkeypatch.setattr(costs.time, "perf_counter", lambda: clock[0])
    config = resolve("vit-digits", flags={"num_layers": 5, "num_blocks": 2, "hidden_size": 8, "num_heads": 2})
    configs = {"blocks": config, "end-to-end": config.model_copy(update={"method": "end-to-end"})}
    times = costs.step_times(configs, rounds=2, turn=3, skipped=1)
    assert times["blocks"].seconds == ((3.0, 3.0), (2.0, 2.0))
    assert times["blocks"].to_dict() == {"median": 5.0, "least": 5.0, "most": 5.0, "units": 2, "threads": 1}
    assert times["end-to-end"].rounds == [5.0, 5.0]
    assert turns == [(layers, update) for first in (0, 3) for layers in (3, 2, 5) for update in range(first, first + 3)]
