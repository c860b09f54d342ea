"""Image data sets through `datasets`, from parquet files made here: splits, columns, and plain refusals."""

import sys

import pytest
from source_checks import SPLITS, picture, refused

from diffusionblocks.data.sources import load_images

# ---------------------------------------------------------------- hub


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Writes splits as parquet files into a folder that `datasets.load_dataset` reads, and returns its name."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))

    def write(columns: dict | None = None, names: tuple[str, ...] = ("train", "test"), size: int = 32) -> str:
        folder = tmp_path / f"set{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        for name in names:
            count = 40 if name == "train" else 4
            rows = {
                "img": [picture(row, size, "L" if row == 1 else "RGB") for row in range(count)],
                "coarse_label": [0] * count,
                "fine_label": [row % 2 for row in range(count)],
            }
            kinds = {
                "img": datasets.Image(),
                "coarse_label": datasets.ClassLabel(names=["all"]),
                "fine_label": datasets.ClassLabel(names=["even", "odd"]),
            }
            for column, (kind, values) in (columns or {}).items():
                rows[column], kinds[column] = values[:count], kind
            kinds = {column: kind for column, kind in kinds.items() if kind is not None}
            data = datasets.Dataset.from_dict({k: rows[k] for k in kinds}, features=datasets.Features(kinds))
            data.to_parquet(str(folder / f"{name}-00000-of-00001.parquet"))
        return f"hub:{folder}"

    return write


def test_hub_splits(hub):
    name = hub()
    parts = {split: load_images("cifar-100", split, name, seed=2) for split in SPLITS}
    assert {split: len(part) for split, part in parts.items()} == {"train": 36, "validation": 4, "test": 4}
    assert parts["test"].images[:, :, 31, 0].tolist() == [[row] * 3 for row in range(4)]
    assert parts["test"].classes == ("even", "odd")
    assert parts["validation"].labels.tolist().count(0) == 2
    values = [v for split in SPLITS[:2] for v in parts[split].images[:, 0, 0, 0].tolist()]
    assert sorted(values) == list(range(40))
    for part in parts.values():
        assert (part.images[:, 0, 0, 0] % 2).tolist() == part.labels.tolist()


@pytest.mark.parametrize("name", ["validation", "valid"])
def test_hub_validation_serves_as_test(hub, monkeypatch, name):
    import datasets

    data_dir = hub(names=("train", "validation"), size=64)
    parts = datasets.load_dataset(data_dir.removeprefix("hub:"))
    # Parquet files named valid-* become "validation", so the other spelling is put in here.
    renamed = {"train": parts["train"], name: parts["validation"]}
    monkeypatch.setattr(datasets, "load_dataset", lambda folder: renamed)
    assert len(load_images("tiny-imagenet", "test", data_dir)) == 4
    assert len(load_images("tiny-imagenet", "train", data_dir)) == 36


def test_hub_test_split_comes_before_validation(hub, monkeypatch):
    import datasets

    data_dir = hub()
    parts = datasets.load_dataset(data_dir.removeprefix("hub:"))
    both = {"validation": parts["train"], "train": parts["train"], "test": parts["test"]}
    monkeypatch.setattr(datasets, "load_dataset", lambda folder: both)
    assert len(load_images("cifar-100", "test", data_dir)) == 4
    assert len(load_images("cifar-100", "validation", data_dir)) == 4


def test_hub_refusals(hub):
    import datasets

    label = datasets.ClassLabel(names=["even", "odd"])
    refused("28x28 pixels", "fashion-mnist", "test", hub())
    refused("test or validation or valid", "cifar-100", "test", hub(names=("train",)))
    refused("named train", "cifar-100", "train", hub(names=("test",)))
    second = {"mask": (datasets.Image(), [picture(1, 32)] * 40)}
    refused("exactly one column of images", "cifar-100", "test", hub(second))
    refused("ClassLabel", "cifar-100", "test", hub({"fine_label": (None, []), "other": (label, [0] * 40)}))
    refused("ClassLabel", "cifar-100", "test", hub({"fine_label": (None, []), "coarse_label": (None, [])}))
    unlabelled = {"fine_label": (label, [0, 1, -1, 0] * 10)}
    refused("fine_label[row 2]=-1", "cifar-100", "test", hub(unlabelled))
    empty = {"fine_label": (label, [0, None, 1, 0] * 10)}
    refused("fine_label[row 1]=-1", "cifar-100", "test", hub(empty))
    missing = {"img": (datasets.Image(), [picture(1, 32), None] * 20)}
    refused("row 1", "cifar-100", "test", hub(missing))


def test_hub_prefers_label_and_takes_an_only_column(hub):
    import datasets

    label = datasets.ClassLabel(names=["odd", "even"])
    flipped = {"fine_label": (None, []), "label": (label, [1, 0] * 20)}
    assert load_images("cifar-100", "test", hub(flipped)).labels.tolist() == [1, 0, 1, 0]
    only = {"fine_label": (None, []), "coarse_label": (None, []), "kind": (label, [1, 0] * 20)}
    assert load_images("cifar-100", "test", hub(only)).labels.tolist() == [1, 0, 1, 0]


def test_hub_failures_are_one_line(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")

    def unreachable(name, **options):
        assert name == "uoft-cs/cifar100"
        assert not options
        raise ConnectionError("no route\nto the hub " + "x" * 1000)

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    line = refused("ConnectionError: no route to the hub", "cifar-100", "train", "hub:uoft-cs/cifar100")
    assert len(line) < 500
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "pip install" in refused("the package `datasets`", "cifar-100", "train", "hub:uoft-cs/cifar100")
