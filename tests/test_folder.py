"""A user's folder of images: its classes, splits and pixels, and a plain line for what is wrong with it."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from diffusionblocks.data.folder import open_folder
from diffusionblocks.data.images import read_image
from diffusionblocks.data.sources import load_images
from diffusionblocks.errors import InputError

SPLITS = ("train", "validation", "test")


def refused(fragment: str, data_dir: Path | str, split: str = "train", size: int = 8, channels: int = 3) -> str:
    """The one line of the refusal, which must contain `fragment`."""
    with pytest.raises(InputError) as caught:
        open_folder(str(data_dir), split, size, channels).load()
    line = str(caught.value)
    assert fragment in line
    assert "\n" not in line
    return line


def save(path: Path, value: int, size: tuple[int, int] = (8, 8)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value,) * 3).save(path)
    return path


def values(part) -> list[int]:
    return part.images[:, 0, 0, 0].tolist()


@pytest.fixture
def animals(tmp_path) -> Path:
    """20 cats of grey 0..19 and 10 dogs of grey 100..109, in several formats and depths, beside other files."""
    for k in range(20):
        save(tmp_path / "cat" / ("deep" if k % 2 else ".") / f"{k:02}{('.png', '.BMP')[k % 2]}", k)
    for k in range(10):
        save(tmp_path / "Dog" / f"{k}.png", 100 + k)
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "cat" / "._00.png").write_bytes(b"resource fork")
    (tmp_path / "empty").mkdir()
    save(tmp_path / ".thumbnails" / "00.png", 255)
    return tmp_path


def test_splits_by_class(animals):
    size = {"image_size": 8, "num_channels": 3}
    parts = {split: load_images("folder", split, str(animals), seed=1, **size) for split in SPLITS}
    assert {split: torch.bincount(part.labels).tolist() for split, part in parts.items()} == {
        "train": [8, 16],
        "validation": [1, 2],
        "test": [1, 2],
    }
    for part in parts.values():
        assert part.classes == ("Dog", "cat")
        assert [value < 50 for value in values(part)] == [label == 1 for label in part.labels]
    assert sorted(v for part in parts.values() for v in values(part)) == [*range(20), *range(100, 110)]
    again = load_images("folder", "test", str(animals), seed=1, **size)
    assert values(again) == values(parts["test"])
    others = [load_images("folder", "test", str(animals), seed=seed, **size) for seed in (2, 3, 4)]
    assert any(values(other) != values(again) for other in others)


def test_pixels_are_those_of_read_image(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (5, 30, 21, 3), dtype=np.uint8)
    for k, pixels in enumerate(noise):
        path = tmp_path / "a" / f"{k}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(path)
    part = open_folder(str(tmp_path), "train", 12, 1)
    loaded = part.load()
    assert loaded.images.shape == (3, 1, 12, 12)
    wanted = torch.stack([read_image(tmp_path / "a" / f"{k}.png", 12, 1) for k in range(5)])
    names = [int(Path(name).stem) for name in part.items.names]  # type: ignore[attr-defined]
    assert names == sorted(names)
    assert torch.equal(loaded.images, wanted[names])
    index = torch.tensor([2, 0, 2])
    assert torch.equal(part.pixels(index), loaded.pixels(index))
    assert torch.equal(pickle.loads(pickle.dumps(part)).pixels(index), loaded.pixels(index))


@pytest.mark.parametrize("name", ["validation", "val", "valid"])
def test_split_folders(tmp_path, name):
    for k in range(10):
        save(tmp_path / "train" / "ab"[k % 2] / f"{k}.png", k)
    save(tmp_path / name / "b" / "0.png", 50)
    save(tmp_path / "test" / "a" / "0.png", 60)
    (tmp_path / "README.md").write_text("about")
    parts = {split: open_folder(str(tmp_path), split, 4, 3).load() for split in SPLITS}
    assert values(parts["train"]) == [0, 2, 4, 6, 8, 1, 3, 5, 7, 9]
    assert (values(parts["validation"]), parts["validation"].labels.tolist()) == ([50], [1])
    assert (values(parts["test"]), parts["test"].labels.tolist()) == ([60], [0])


def test_a_split_without_a_folder_is_taken_from_train(tmp_path):
    for k in range(20):
        save(tmp_path / "train" / "a" / f"{k:02}.png", k)
    save(tmp_path / "test" / "a" / "0.png", 60)
    parts = {split: open_folder(str(tmp_path), split, 4, 3).load() for split in SPLITS}
    assert [len(parts[split]) for split in SPLITS] == [18, 2, 1]
    assert sorted(values(parts["train"]) + values(parts["validation"])) == list(range(20))
    (tmp_path / "test" / "a" / "0.png").unlink()
    refused("no file in it has one of the suffixes", tmp_path)
    (tmp_path / "test" / "a").rmdir()
    (tmp_path / "test").rmdir()
    assert [len(open_folder(str(tmp_path), split, 4, 3)) for split in SPLITS] == [16, 2, 2]


def test_a_flat_folder_is_one_class(tmp_path):
    for k in range(6):
        save(tmp_path / f"{k}.png", k)
    part = open_folder(str(tmp_path), "train", 4, 1)
    assert (part.classes, len(part), part.num_classes) == (("image",), 4, 1)
    assert part.labels.tolist() == [0] * 4


def test_what_is_wrong_with_a_folder(tmp_path, animals):
    refused("there is no such folder", tmp_path / "absent")
    refused("size=0", animals, size=0)
    refused("channels=2", animals, channels=2)
    only_text = tmp_path / ".only text"
    only_text.mkdir()
    (only_text / "a.txt").write_text("a")
    refused("no file in it has one of the suffixes", only_text)
    small = tmp_path / ".small"
    for k in range(4):
        save(small / "a" / f"{k}.png", k)
    assert len(open_folder(str(small), "train", 4, 3)) == 4
    assert "validation" in refused("images=4: expected enough for a validation split", small, "validation")
    save(small / "b.png", 1)
    refused("of which class is b.png?", small)
    (animals / "cat" / "02.png").write_bytes(b"not a picture")
    assert "a complete image" in refused(str(animals / "cat" / "02.png"), animals)


def test_split_folders_that_leave_a_choice(tmp_path):
    save(tmp_path / "test" / "a" / "0.png", 0)
    refused("expected train/ beside test/", tmp_path)
    save(tmp_path / "train" / "b" / "0.png", 0)
    refused("it lacks 'a'", tmp_path)
    save(tmp_path / "train" / "a" / "0.png", 0)
    assert len(open_folder(str(tmp_path), "test", 4, 3)) == 1
    save(tmp_path / "val" / "a" / "0.png", 0)
    save(tmp_path / "validation" / "a" / "0.png", 0)
    refused("one folder of validation/, val/ and valid/", tmp_path)
    (tmp_path / "val").rename(tmp_path / "more")
    refused(str(tmp_path / "more"), tmp_path)


def test_size_and_channels_are_needed(animals):
    for given in ({"image_size": 8}, {"num_channels": 3}):
        with pytest.raises(InputError, match=r"(image_size|num_channels)=None"):
            load_images("folder", "train", str(animals), **given)
    with pytest.raises(InputError, match="data_dir=None"):
        load_images("folder", "train", None, image_size=8, num_channels=3)
    with pytest.raises(InputError, match="fold=1"):
        load_images("folder", "train", str(animals), fold=1, image_size=8, num_channels=3)


def test_fingerprint_tells_other_images(animals):
    first = open_folder(str(animals), "train", 8, 3)
    assert first.fingerprint() == open_folder(str(animals), "train", 8, 3).fingerprint()
    others = [open_folder(str(animals), "train", 16, 3), open_folder(str(animals), "test", 8, 3)]
    save(animals / first.items.names[0], 77, size=(9, 9))  # type: ignore[attr-defined]
    assert len({part.fingerprint() for part in (first, *others)}) == 3
    data = first.load()
    assert data.fingerprint() == first.load().fingerprint() != first.load().subset([0, 1]).fingerprint()


# ---------------------------------------------------------------- hub


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Writes splits of 10 or 20 images of growing size as parquet files, and returns their name for `data_dir`."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))

    def write(counts: dict[str, int], label: bool = True) -> str:
        folder = tmp_path / f"set{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        for name, count in counts.items():
            rows = {"picture": [Image.new("RGB", (20 + k, 30), (k,) * 3) for k in range(count)]}
            kinds = {"picture": datasets.Image()}
            if label:
                rows["kind"] = [k % 2 for k in range(count)]  # type: ignore[assignment]
                kinds["kind"] = datasets.ClassLabel(names=["even", "odd"])
            data = datasets.Dataset.from_dict(rows, features=datasets.Features(kinds))
            data.to_parquet(str(folder / f"{name}-00000-of-00001.parquet"))
        return f"hub:{folder}"

    return write


def test_hub_splits_at_any_size(hub):
    name = hub({"train": 20})
    parts = {split: load_images("folder", split, name, seed=3, image_size=8, num_channels=1) for split in SPLITS}
    assert [len(parts[split]) for split in SPLITS] == [16, 2, 2]
    assert sorted(v for part in parts.values() for v in values(part)) == list(range(20))
    for part in parts.values():
        assert part.images.shape[1:] == (1, 8, 8)
        assert (part.images[:, 0, 0, 0] % 2).tolist() == part.labels.tolist()
        assert part.classes == ("even", "odd")
    lazy = open_folder(name, "train", 8, 1, seed=3)
    assert lazy.fingerprint() == open_folder(name, "train", 8, 1, seed=3).fingerprint()
    assert torch.equal(lazy.pixels(torch.tensor([5, 1])), parts["train"].images[[5, 1]])


def test_hub_keeps_the_splits_it_has(hub):
    name = hub({"train": 20, "validation": 6, "test": 4})
    assert [len(open_folder(name, split, 8, 3)) for split in SPLITS] == [20, 6, 4]


def test_hub_without_labels_is_one_class(hub):
    part = open_folder(hub({"train": 10}, label=False), "train", 8, 3)
    assert (part.classes, part.labels.tolist()) == (("image",), [0] * 8)


def test_hub_refusals(hub):
    refused("a split named train", hub({"test": 4}))
    refused("images=4: expected enough for a test split", hub({"train": 4}), "test")
