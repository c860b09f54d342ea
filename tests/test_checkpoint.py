"""Folders on disk: whole or refused, nothing outside them touched, names as the user's class has them."""

import contextlib
import json
import os

import pytest
import torch
from safetensors.torch import load_file
from transformers import ViTForImageClassification

from diffusionblocks import BlockwiseModel, InputError, checkpoint, convert


@pytest.fixture
def saved(tiny_network, tmp_path):
    model = convert(tiny_network, 3).eval()
    with torch.no_grad():
        for block in model.block_list:
            block.conditioning.weight.normal_(std=0.1)
    model.save_pretrained(tmp_path / "model")
    return model, tmp_path / "model"


def test_a_saved_model_gives_the_same_output(saved, images):
    model, folder = saved
    loaded = BlockwiseModel.from_pretrained(folder)
    with torch.no_grad():
        assert torch.equal(loaded(images).logits, model(images).logits)
    assert loaded.config == model.config
    assert torch.equal(loaded.targets, model.targets)


def test_a_blocks_folder_is_a_model_of_the_users_class(saved, images):
    model, folder = saved
    plain = ViTForImageClassification.from_pretrained(folder / "block-1").eval()
    block = model.block_list[1]
    with torch.no_grad(), block.neutral():
        assert torch.equal(plain(images).logits, block.backbone(images).logits)
    assert not any(name.endswith((".bin", ".pt", ".pkl")) for _, _, names in os.walk(folder) for name in names)


def test_compiled_and_parallel_wrappers_leave_no_trace_in_names(saved, tmp_path):
    model, folder = saved
    block = model.block_list[1]
    expected = {p.name: set(load_file(p)) for p in (folder / "block-1").glob("*.safetensors")}
    block.backbone = torch.compile(block.backbone)
    for wrapped in (block, torch.compile(block)):
        checkpoint.save_network(wrapped, tmp_path)
        assert {p.name: set(load_file(p)) for p in tmp_path.glob("*.safetensors")} == expected
    assert checkpoint.canonical_name("module._orig_mod.backbone._orig_mod.vit.x") == "backbone.vit.x"


def test_saving_over_a_model_replaces_it_and_over_other_files_is_refused(saved, tmp_path):
    model, folder = saved
    model.save_pretrained(folder)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("keep")
    with pytest.raises(InputError, match="mine"):
        model.save_pretrained(tmp_path / "mine")
    assert (tmp_path / "mine/notes.txt").read_text() == "keep"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine", "model"]


def test_a_failed_save_keeps_the_old_model(saved, monkeypatch, images):
    model, folder = saved
    with torch.no_grad():
        before = model(images).logits
        monkeypatch.setattr(checkpoint, "save_tensors", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            convert(model.block_list[0].backbone, 1).save_pretrained(folder)
        assert torch.equal(BlockwiseModel.from_pretrained(folder)(images).logits, before)
    assert [p.name for p in folder.parent.iterdir()] == ["model"]


def _truncate(folder):
    path = folder / "block-1/model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])


def _drop_a_weight(folder):
    path = folder / "block-1/model.safetensors"
    tensors = load_file(path)
    del tensors["classifier.bias"]
    checkpoint.save_tensors(tensors, path)


def _foreign_setting(folder):
    path = folder / "diffusionblocks.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_block": 3}))


def _other_number_of_blocks(folder):
    path = folder / "diffusionblocks.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_blocks": 4, "num_sampling_steps": None}))


def _not_json(folder):
    (folder / "diffusionblocks.json").write_text('{"num_blocks": ')


def _foreign_family(folder):
    path = folder / "diffusionblocks.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "family": "os.system"}))


def _other_targets(folder):
    checkpoint.save_tensors({"targets": torch.zeros(5, 3)}, folder / "targets.safetensors")


def _other_width_of_targets(folder):
    checkpoint.save_tensors({"targets": torch.zeros(4, 2)}, folder / "targets.safetensors")


def _no_conditioning(folder):
    (folder / "block-2/conditioning.safetensors").unlink()


def _other_conditioning(folder):
    path = folder / "block-2/conditioning.safetensors"
    checkpoint.save_tensors({name: t for name, t in load_file(path).items() if "entry.bias" not in name}, path)


def _pickle(folder):
    (folder / "block-0/model.safetensors").unlink()
    torch.save({}, folder / "block-0/pytorch_model.bin")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_truncate, "block-1"),
        (_drop_a_weight, r"classifier\.bias"),
        (_foreign_setting, "num_block=3"),
        (_other_number_of_blocks, "block-3"),
        (_not_json, "line 1"),
        (_foreign_family, "family"),
        (_other_targets, "4 rows"),
        (_other_width_of_targets, r"entry\.weight"),
        (_no_conditioning, "conditioning"),
        (_other_conditioning, r"entry\.bias"),
        (_pickle, "model.safetensors"),
    ],
)
def test_a_damaged_model_is_refused_in_one_line(saved, damage, words):
    _, folder = saved
    damage(folder)
    with pytest.raises(InputError, match=words) as caught:
        BlockwiseModel.from_pretrained(folder)
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"diffusionblocks\.json"):
        BlockwiseModel.from_pretrained(tmp_path / "nothing")


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/b", "a\\b", "..", ".", "", "a\0b"])
def test_names_that_leave_the_folder_are_refused(tmp_path, name):
    (tmp_path / "x").write_text("x")
    (tmp_path / "manifest.json").write_text(json.dumps({"files": {name: {"bytes": 1, "sha256": ""}}}))
    with pytest.raises(InputError, match="plain file name"):
        checkpoint.check_manifest(tmp_path)


def test_a_link_out_of_the_folder_is_refused(tmp_path):
    (tmp_path / "outside").write_text("x")
    folder = tmp_path / "inside"
    folder.mkdir()
    (folder / "x").write_text("x")
    checkpoint.write_manifest(folder)
    checkpoint.check_manifest(folder)
    (folder / "x").unlink()
    (folder / "x").symlink_to(tmp_path / "outside")
    with pytest.raises(InputError, match="x"):
        checkpoint.check_manifest(folder)


@pytest.mark.parametrize("change", [b"", b"abcd", b"ab", b"abX"])
def test_any_change_of_a_listed_file_is_noticed(tmp_path, change):
    (tmp_path / "file").write_bytes(b"abc")
    checkpoint.write_manifest(tmp_path)
    checkpoint.check_manifest(tmp_path)
    (tmp_path / "file").write_bytes(change)
    with pytest.raises(InputError, match="checksum"):
        checkpoint.check_manifest(tmp_path)


def test_a_folder_appears_only_when_it_is_whole(tmp_path):
    with checkpoint.atomic_folder(tmp_path / "new") as draft:
        (draft / "a").write_text("1")
        assert not (tmp_path / "new").exists()
    with contextlib.suppress(RuntimeError), checkpoint.atomic_folder(tmp_path / "new") as draft:
        (draft / "a").write_text("2")
        raise RuntimeError
    assert (tmp_path / "new/a").read_text() == "1"
    assert [p.name for p in tmp_path.iterdir()] == ["new"]


def test_what_a_killed_process_left_is_cleared_by_the_next_save(tmp_path):
    (tmp_path / ".new.draft-1").mkdir()
    with checkpoint.atomic_folder(tmp_path / "new") as draft:
        (draft / "a").write_text("1")
    assert [p.name for p in tmp_path.iterdir()] == ["new"]
