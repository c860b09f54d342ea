"""Feature extractors: the same bits from the same data, refusals, and nothing downloaded."""

import hashlib
import itertools
import json
import sys
import types

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from diffusionblocks.data.images import ImageSet
from diffusionblocks.data.sources import load_images
from diffusionblocks.errors import InputError
from diffusionblocks.evaluation.features import ClassifierFeatures, inception_features, train_features
from diffusionblocks.evaluation.image_quality import image_quality
from diffusionblocks.randomness import keyed_generator


def noise_images(n: int = 40, size: int = 8, channels: int = 1, key: str = "") -> ImageSet:
    shape = (n, channels, size, size)
    pixels = torch.randint(0, 256, shape, generator=keyed_generator(0, "pixels", key), dtype=torch.uint8)
    return ImageSet(pixels, torch.arange(n) % 4, ("a", "b", "c", "d"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("features") / "made" / "here"
    return folder, train_features(noise_images(), folder, updates=3, progress=False)


def test_the_folder_says_what_it_holds(trained):
    folder, features = trained
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "features.json", "model.safetensors"]
    record = json.loads((folder / "features.json").read_text())
    assert record["name"] == features.name == "classifier (ResNet, F=64, trained on 40 images)"
    assert record["num_features"] == features.num_features == 64
    weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert record["sha256"] == features.sha256 == weights
    assert record["data"]["num_images"] == 40
    assert record["data"]["images_sha256"] == hashlib.sha256(noise_images().images.numpy().tobytes()).hexdigest()
    assert (record["settings"]["seed"], record["settings"]["updates"]) == (0, 3)
    assert 0 <= record["accuracy"] <= 1


def test_training_twice_gives_the_same_bits(trained, tmp_path):
    _, features = trained
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    with torch.no_grad():  # as an evaluation around it may have
        again = train_features(noise_images(), tmp_path / "again", updates=3, progress=False)
    assert torch.equal(before, torch.random.get_rng_state())
    assert again.sha256 == features.sha256
    assert torch.equal(again(noise_images().images), features(noise_images().images))


def test_the_hash_changes_with_seed_and_updates(trained, tmp_path):
    _, features = trained
    others = {
        train_features(noise_images(), tmp_path / f"{seed}-{updates}", seed, updates, progress=False).sha256
        for seed, updates in ((1, 3), (0, 2))
    }
    assert len(others | {features.sha256}) == 3


def test_features_are_loaded_again_and_not_trained(trained, monkeypatch):
    folder, features = trained
    monkeypatch.setattr("diffusionblocks.evaluation.features._train", None)
    for again in (train_features(noise_images(), folder, updates=3), ClassifierFeatures.from_folder(folder)):
        assert (again.name, again.sha256, again.record) == (features.name, features.sha256, features.record)
        assert torch.equal(again(noise_images().images), features(noise_images().images))


def test_features_of_other_data_or_settings_are_refused(trained):
    folder, _ = trained
    relabelled = ImageSet(noise_images().images, noise_images().labels.flip(0), noise_images().classes)
    for images, seed, updates, name in (
        (noise_images(key="other"), 0, 3, "data.images_sha256"),
        (noise_images(n=44), 0, 3, "data.num_images"),
        (noise_images(channels=3), 0, 3, "data.num_channels"),
        (relabelled, 0, 3, "data.labels_sha256"),
        (noise_images(), 1, 3, "settings.seed"),
        (noise_images(), 0, 4, "settings.updates"),
    ):
        with pytest.raises(InputError, match=name):
            train_features(images, folder, seed, updates, progress=False)


def test_changed_weights_are_refused(trained, tmp_path):
    folder, _ = trained
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    weights["classifier.1.bias"][0] += 1
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match="train the features again"):
        ClassifierFeatures.from_folder(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(InputError, match="SHA-256"):
        ClassifierFeatures.from_folder(tmp_path)
    with pytest.raises(InputError, match=r"features\.json"):
        ClassifierFeatures.from_folder(tmp_path / "nowhere")


def test_a_folder_with_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="an empty folder or none"):
        train_features(noise_images(), tmp_path, updates=1, progress=False)
    with pytest.raises(InputError, match="an empty folder or none"):
        train_features(noise_images(), tmp_path / "thesis.txt", updates=1, progress=False)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_a_failed_training_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.ResNetForImageClassification.save_pretrained", None)
    with pytest.raises(TypeError):
        train_features(noise_images(), tmp_path / "features", updates=1, progress=False)
    assert list(tmp_path.iterdir()) == []


def test_one_class_is_no_classifier(tmp_path):
    images = ImageSet(noise_images().images, torch.zeros(40, dtype=torch.int64), ("only", "unused"))
    with pytest.raises(InputError, match="two classes or more"):
        train_features(images, tmp_path / "features")
    with pytest.raises(InputError, match="at least 1 update"):
        train_features(noise_images(), tmp_path / "features", updates=0)


def test_a_sample_s_features_depend_on_no_other_sample(trained):
    """Batch normalisation uses running statistics, whatever mode the network was left in."""
    _, features = trained
    images = noise_images(key="new").images
    whole = features(images)
    assert (whole.dtype, tuple(whole.shape), whole.requires_grad) == (torch.float32, (40, 64), False)
    torch.testing.assert_close(features(images, batch_size=7), whole, rtol=1e-5, atol=1e-6)
    order = torch.randperm(40, generator=keyed_generator(0))
    torch.testing.assert_close(features(images[order]), whole[order], rtol=1e-5, atol=1e-6)


def test_the_features_are_the_pooled_output_of_the_enlarged_images(trained):
    _, features = trained
    images = noise_images().images
    x = nn.functional.interpolate(images / 127.5 - 1, size=(32, 32), mode="bilinear")
    with torch.no_grad():
        expected = features.network.resnet(x).last_hidden_state.mean(dim=(2, 3))
    torch.testing.assert_close(features(images), expected, rtol=1e-5, atol=1e-6)


def test_images_of_another_kind_are_refused(trained):
    _, features = trained
    with pytest.raises(InputError, match="uint8"):
        features(torch.zeros(4, 1, 8, 8))
    for images in (noise_images(size=9), noise_images(channels=3)):
        with pytest.raises(InputError, match=r"\(1, 8, 8\)"):
            features(images.images)


def test_larger_and_coloured_images_work(tmp_path):
    images = noise_images(size=36, channels=3)
    features = train_features(images, tmp_path / "features", updates=1, progress=False)
    assert features(images.images).shape == (40, 64)


def test_digits_are_learnt_and_worse_images_are_further_away(tmp_path):
    images = load_images("digits", "train")
    features = train_features(images, tmp_path / "features", updates=40, progress=False)
    test = load_images("digits", "test").images
    assert features.record.accuracy > 0.8
    noise = torch.randn(test.shape, generator=keyed_generator(0, "noise"))
    real = features(images.images[: len(test)])
    scores = [
        image_quality(real, features((test + level * noise).round().clamp(0, 255).to(torch.uint8)))
        for level in (0, 20, 60)
    ]
    for better, worse in itertools.pairwise(scores):
        assert better["fid"] < worse["fid"]
        assert better["kid"] < worse["kid"]
        assert better["precision"] > worse["precision"]


class FakeInception(nn.Module):
    """The interface of torch-fidelity's extractor: a name, names of layers, a path; a tuple of features."""

    def __init__(self, name, features_list, feature_extractor_weights_path=None):
        super().__init__()
        assert features_list == ["2048"]
        self.scale = nn.Parameter(torch.load(feature_extractor_weights_path)["scale"])

    def forward(self, x):
        assert x.dtype == torch.uint8
        assert x.shape[1] == 3
        return (x.float().flatten(1)[:, :1].repeat(1, 2048) * self.scale,)


@pytest.fixture
def fake_fidelity(monkeypatch):
    module = types.ModuleType("torch_fidelity.feature_extractor_inceptionv3")
    module.FeatureExtractorInceptionV3 = FakeInception  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch_fidelity", types.ModuleType("torch_fidelity"))
    monkeypatch.setitem(sys.modules, module.__name__, module)


def test_inception_takes_its_weights_from_the_file(fake_fidelity, tmp_path):
    torch.save({"scale": torch.tensor(2.0)}, tmp_path / "weights.pth")
    features = inception_features(tmp_path / "weights.pth")
    assert features.name == "inception-v3 (torch-fidelity)"
    assert features.sha256 == hashlib.sha256((tmp_path / "weights.pth").read_bytes()).hexdigest()
    images = noise_images().images
    result = features(images, batch_size=7)
    assert (result.dtype, tuple(result.shape), features.num_features) == (torch.float32, (40, 2048), 2048)
    assert torch.equal(result[:, 5], images[:, 0, 0, 0] * 2.0)
    assert features(noise_images(channels=3).images).shape == (40, 2048)
    with pytest.raises(InputError, match="uint8"):
        features(images.float())


def test_inception_without_its_weights_is_refused(fake_fidelity, tmp_path):
    for missing in (None, tmp_path / "missing.pth", tmp_path):
        with pytest.raises(InputError, match="weights-inception-2015-12-05-6726825d"):
            inception_features(missing)
    (tmp_path / "broken.pth").write_bytes(b"not weights")
    with pytest.raises(InputError, match="cannot be read"):
        inception_features(tmp_path / "broken.pth")


def test_inception_without_torch_fidelity_is_refused(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch_fidelity", None)
    monkeypatch.setitem(sys.modules, "torch_fidelity.feature_extractor_inceptionv3", None)
    (tmp_path / "weights.pth").write_bytes(b"")
    with pytest.raises(InputError, match="pip install torch-fidelity"):
        inception_features(tmp_path / "weights.pth")
