"""Training: blocks do not touch each other, order and interruptions do not matter, and every step is what it says."""

import copy
import json
import os
import signal

import pytest
import torch

from diffusionblocks import InputError, TensorBatches, Trainer, TrainingConfig, TrainingError, convert
from diffusionblocks.families.vit import PlainVit
from diffusionblocks.randomness import keyed_generator
from diffusionblocks.training.state import checkpoints, newest
from diffusionblocks.training.step import make_optimizer, train_step
from diffusionblocks.training.trainer import Interrupted

SETTINGS = TrainingConfig(
    updates=50, batch_size=8, ema_decay=0.9, weight_decay=0.1, rotate_every=7, checkpoint_every=20, seed=3
)


def run(units, batches, config=SETTINGS, run_dir=None, **options):
    trainer = Trainer(units, batches, config, run_dir, progress=False, **options)
    trainer.train()
    return trainer


def weights(unit):
    return {name: tensor.clone() for name, tensor in unit.state_dict().items()}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_training_one_block_changes_that_block_only(tiny_config, batches):
    model = convert(tiny_config, 3)
    before = [weights(block) for block in model.block_list]
    table = model.targets.clone()
    run([model.block_list[1]], batches)
    assert same(before[0], weights(model.block_list[0]))
    assert same(before[2], weights(model.block_list[2]))
    assert not any(torch.equal(before[1][n], p) for n, p in model.block_list[1].named_parameters())
    assert torch.equal(model.targets, table)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_share_of_the_levels_is_the_plans_own(tiny_config, share):
    model = convert(tiny_config, 3, num_sampling_steps=7, plan_draws=share)
    for block in model.block_list:
        own = [step.sigma for step in model.plan.steps if step.block == block.index]
        sigma = block.draw(4000, keyed_generator(0, "draw")).sigma
        planned = [(sigma == level).double().mean().item() for level in own]
        assert sum(planned) == pytest.approx(share, abs=0.04)
        assert planned == pytest.approx([share / len(own)] * len(own), abs=0.04)
        rest = sigma[~torch.isin(sigma, torch.tensor(own, dtype=torch.float64))]
        assert ((rest >= block.trained_on.lo) & (rest <= block.trained_on.hi)).all()


def test_in_turn_equals_each_alone(tiny_config, batches):
    """Blocks trained in turn, in other turns, and each by its own trainer end bit-identical, dropout and EMA on."""
    together = run(convert(tiny_config, 3), batches)
    other_turns = run(convert(tiny_config, 3), batches, SETTINGS.model_copy(update={"rotate_every": 50}))
    for index in range(3):
        alone = run([convert(tiny_config, 3).block_list[index]], batches)
        for trainer in (together, other_turns):
            assert same(weights(trainer.states[index].unit), weights(alone.states[0].unit))
            assert same(trainer.states[index].ema.average, alone.states[0].ema.average)


def test_measuring_memory_does_not_change_training(tiny_config, batches):
    measured, not_measured = (
        run(convert(tiny_config, 3), batches, measure_memory=measure) for measure in (True, False)
    )
    assert measured.memory
    assert not not_measured.memory
    for first, second in zip(measured.states, not_measured.states, strict=True):
        assert same(weights(first.unit), weights(second.unit))


class StopsAt(TensorBatches):
    """Sends Ctrl-C to this process when the given number of batches has been read."""

    def __init__(self, x, y, count):
        super().__init__(x, y)
        object.__setattr__(self, "left", [count])

    def batch(self, rows, seed, block):
        self.left[0] -= 1
        if self.left[0] == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return super().batch(rows, seed, block)


@pytest.mark.parametrize("at", [1, 60, 149])
def test_stop_and_resume_equals_an_uninterrupted_run(tiny_config, batches, tmp_path, at):
    whole = run(convert(tiny_config, 3), batches, run_dir=tmp_path / "whole")
    stopping = StopsAt(batches.x, batches.y, at)
    with pytest.raises(Interrupted):
        run(convert(tiny_config, 3), stopping, run_dir=tmp_path / "parts")
    resumed = run(convert(tiny_config, 3), batches, run_dir=tmp_path / "parts")
    for first, second in zip(whole.states, resumed.states, strict=True):
        assert second.updates == 50
        assert same(weights(first.unit), weights(second.unit))
        assert same(first.ema.average, second.ema.average)
        for p, q in zip(first.unit.parameters(), second.unit.parameters(), strict=True):
            assert same(first.optimizer.state[p], second.optimizer.state[q])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_resumed_log_has_every_update_once(tiny_config, batches, tmp_path):
    """A run killed after its checkpoint has logged rows that the resumed run writes again."""
    run(convert(tiny_config, 3), batches, run_dir=tmp_path)
    log = tmp_path / "block-0/metrics.jsonl"
    rows = log.read_text()
    checkpoints(tmp_path / "block-0")[0].rename(tmp_path / "gone")
    log.write_text(rows + '{"block": 0, "upd')
    run(convert(tiny_config, 3), batches, run_dir=tmp_path)

    # Checkpoints fall on the ends of turns, so the resumed run's turns end where the first run's did.
    updates = [[json.loads(line)["update"] for line in text.splitlines()] for text in (rows, log.read_text())]
    assert updates[0] == updates[1] == [7, 14, 21, 28, 35, 42, 49, 50]


def test_a_finished_run_is_left_as_it_is(tiny_config, batches, tmp_path):
    run(convert(tiny_config, 3), batches, run_dir=tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("checkpoint-*/*")}
    run(convert(tiny_config, 3), batches, run_dir=tmp_path)
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("checkpoint-*/*")}


def test_a_broken_checkpoint_is_passed_over_with_the_reason(tiny_config, batches, tmp_path):
    whole = run(convert(tiny_config, 3), batches, run_dir=tmp_path)
    latest, earlier = checkpoints(tmp_path / "block-1")
    path = latest / "optimizer.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    resumed = Trainer(convert(tiny_config, 3), batches, SETTINGS, tmp_path, progress=False)
    said = " ".join(resumed.messages)
    assert latest.name in said
    assert "checksum" in said
    assert earlier.name in said
    resumed.train()
    assert same(weights(whole.states[1].unit), weights(resumed.states[1].unit))


def test_with_no_whole_checkpoint_left_nothing_starts_over_silently(tiny_config, batches, tmp_path):
    run(convert(tiny_config, 3), batches, run_dir=tmp_path)
    for path in checkpoints(tmp_path / "block-1"):
        (path / "model.safetensors").unlink()
    with pytest.raises(InputError, match="block-1"):
        Trainer(convert(tiny_config, 3), batches, SETTINGS, tmp_path, progress=False)


@pytest.mark.parametrize(
    ("settings", "word"), [({"p_mean": 0.2}, "p_mean"), ({"gamma": 0.0}, "gamma"), ({}, "block 1")]
)
def test_a_checkpoint_of_another_law_or_block_is_refused(tiny_config, batches, tmp_path, settings, word):
    run(convert(tiny_config, 3), batches, run_dir=tmp_path)
    if not settings:
        (tmp_path / "block-1").rename(tmp_path / "was-1")
        (tmp_path / "block-0").rename(tmp_path / "block-1")
    with pytest.raises(InputError, match=word):
        Trainer([convert(tiny_config, 3, **settings).block_list[1]], batches, SETTINGS, tmp_path, progress=False)


def test_a_save_that_fails_keeps_the_previous_checkpoint(tiny_config, batches, tmp_path, monkeypatch):
    from diffusionblocks import checkpoint

    calls = []

    def full_disk(tensors, path):
        calls.append(path)
        if len(calls) > 6:
            raise OSError(28, "No space left on device")
        return original(tensors, path)

    original = checkpoint.save_tensors
    monkeypatch.setattr(checkpoint, "save_tensors", full_disk)
    with pytest.raises(OSError, match="No space"):
        run([convert(tiny_config, 3).block_list[0]], batches, run_dir=tmp_path)
    path, refused = newest(tmp_path / "block-0")
    assert path is not None
    assert not refused
    assert not list((tmp_path / "block-0").glob(".*"))
    monkeypatch.undo()
    resumed = run([convert(tiny_config, 3).block_list[0]], batches, run_dir=tmp_path)
    alone = run([convert(tiny_config, 3).block_list[0]], batches)
    assert same(weights(resumed.states[0].unit), weights(alone.states[0].unit))


def test_a_loss_that_is_not_finite_stops_with_block_update_and_levels(tiny_config, batches, tmp_path):
    blocks = convert(tiny_config, 3).block_list
    with torch.no_grad():
        blocks[2].entry.weight[0] = float("nan")
    with pytest.raises(TrainingError, match=r"block 2, update 0, sigma from [\d.]+ to [\d.]+") as caught:
        run(blocks, batches, run_dir=tmp_path)
    assert "nan" in str(caught.value)
    assert not checkpoints(tmp_path / "block-2")
    assert [len(checkpoints(tmp_path / f"block-{k}")) for k in (0, 1)] == [1, 1]


def test_a_bad_sample_is_noticed_with_its_update(tiny_config, batches, tmp_path):
    x = batches.x.clone()
    x[20] = float("nan")
    with pytest.raises(TrainingError, match=r"block 1, update \d+, sigma"):
        run([convert(tiny_config, 3).block_list[1]], TensorBatches(x, batches.y), run_dir=tmp_path)


def test_accumulated_gradient_is_that_of_the_large_batch(tiny_config, images, labels):
    """One update by SGD-like comparison of the gradients themselves, micro-batches of unequal size."""
    tiny_config.hidden_dropout_prob = tiny_config.attention_probs_dropout_prob = 0.0
    gradients = []
    for parts in (1, 5):
        block = convert(tiny_config, 3).block_list[1].train()
        config = TrainingConfig(updates=1, micro_batches=parts, batch_size=37, clip_norm=1e9)
        optimizer = make_optimizer(block, config)
        train_step(block, optimizer, images, labels, update=0, lr=0.0, config=config)
        gradients.append([p.grad for p in block.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)


def test_clipping_bounds_the_norm_of_the_active_block(tiny_config, images, labels):
    model = convert(tiny_config, 3)
    block = model.block_list[1].train()
    config = TrainingConfig(updates=1, batch_size=37, clip_norm=1e-3)
    _, norm = train_step(block, make_optimizer(block, config), images, labels, update=0, lr=0.0, config=config)
    after = torch.stack([p.grad.norm() for p in block.parameters() if p.grad is not None]).norm()
    assert norm > 1e-3
    assert after <= 1e-3 * (1 + 1e-6)
    assert all(p.grad is None for other in (0, 2) for p in model.block_list[other].parameters())


def test_loss_is_the_cross_entropy_on_noised_targets(tiny_config, images, labels):
    """Written out: z = e_y + sigma eps, or 0 where dropped; unweighted, or times the EDM weight in the paper preset."""
    for preset in ("default", "paper"):
        model = convert(tiny_config, 3, preset=preset)
        block = model.block_list[1].eval()
        draw = block.draw(37, keyned := keyed_generator(4))
        assert keyned is not None
        z = model.targets[labels] + draw.sigma.float()[:, None] * draw.noise
        z[draw.dropped] = 0.0
        with torch.no_grad():
            expected = -block(images, z, draw.sigma).log_softmax(-1)[torch.arange(37), labels]
            if preset == "paper":
                assert not draw.dropped.any()
                expected = expected * (draw.sigma**2 + 0.25) / (0.5 * draw.sigma) ** 2
            else:
                assert draw.dropped.any()
            loss = block.loss(images, labels, draw)
        assert loss.shape == (37,)
        torch.testing.assert_close(loss, expected.float())


@pytest.mark.parametrize("autocast", [False, True])
def test_checkpointing_gives_the_same_gradients_when_two_forwards_precede_a_backward(
    tiny_config, images, labels, autocast
):
    """A level kept in a plain attribute would give the first forward's recomputation the second one's level."""
    block = convert(tiny_config, 1).block_list[0].train()
    with torch.no_grad():
        block.conditioning.weight.add_(torch.randn(block.conditioning.weight.shape, generator=keyed_generator(1)))

    def gradients():
        block.zero_grad()
        torch.manual_seed(0)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            losses = [block.loss(images, labels, block.draw(37, keyed_generator(k))).mean() for k in (2, 3)]
        sum(losses).backward()
        return [p.grad.clone() for p in block.parameters() if p.grad is not None]

    plain = gradients()
    block.enable_checkpointing()
    for one, other in zip(plain, gradients(), strict=True):
        assert torch.equal(one, other)


def test_checkpointed_block_with_frozen_embeddings_still_gets_gradients(tiny_config, images, labels):
    block = convert(tiny_config, 3).block_list[0].train()
    block.backbone.vit.embeddings.requires_grad_(False)
    block.entry.requires_grad_(False)
    block.enable_checkpointing()
    block.loss(images, labels, block.draw(37, keyed_generator(0))).mean().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in block.layers[0].parameters() if p.ndim > 1)


def test_a_block_trains_in_the_users_own_loop(tiny_config, images, labels):
    block = convert(tiny_config, 3).block_list[0].train()
    optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
    losses = []
    for step in range(60):
        loss = block.loss(images, labels, block.draw(37, keyed_generator(step))).mean()
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < sum(losses[:5])


def test_the_controls_train_through_the_same_trainer(tiny_network, batches):
    unit = PlainVit(copy.deepcopy(tiny_network))
    trainer = run([unit], batches)
    assert trainer.states[0].updates == 50
    with torch.no_grad():
        unit.eval()
        before = torch.nn.functional.cross_entropy(tiny_network(batches.x).logits, batches.y)
        assert unit.loss(batches.x, batches.y).mean() < before


def test_averaged_weights_are_used_inside_the_context_only(tiny_config, batches):
    trainer = run([convert(tiny_config, 3).block_list[0]], batches)
    state = trainer.states[0]
    raw = weights(state.unit)
    with trainer.averaged():
        assert same({n: p.detach() for n, p in state.unit.named_parameters()}, state.ema.average)
        assert not same(raw, weights(state.unit))
    assert same(raw, weights(state.unit))


def test_workers_do_not_change_the_result(tiny_config, batches):
    alone, helped = (
        run([convert(tiny_config, 3).block_list[0]], batches, SETTINGS.model_copy(update={"num_workers": n}))
        for n in (0, 2)
    )
    assert same(weights(alone.states[0].unit), weights(helped.states[0].unit))


def test_in_bf16_only_the_backbone_is_reduced(tiny_config, batches, monkeypatch):
    """Autocast: weights, optimizer, noise levels and the loss stay wide, and the result stays near that of fp32."""
    seen = {}
    precise = run([convert(tiny_config, 3).block_list[1]], batches)
    block = convert(tiny_config, 3).block_list[1]
    block.layers[0].mlp.fc1.register_forward_hook(lambda m, a, out: seen.update(layer=out.dtype))
    block.conditioning.register_forward_pre_hook(lambda m, a: seen.update(sigma=a[0].dtype))
    loss = block.loss
    monkeypatch.setattr(block, "loss", lambda *a: seen.setdefault("losses", []).append(loss(*a)) or seen["losses"][-1])
    reduced = run([block], batches, SETTINGS.model_copy(update={"precision": "bf16"}))
    assert seen["layer"] == torch.bfloat16
    assert seen["sigma"] == torch.float64
    assert {value.dtype for value in seen["losses"]} == {torch.float32}
    assert {p.dtype for p in block.parameters()} == {torch.float32}
    assert {t.dtype for s in reduced.states[0].optimizer.state.values() for t in s.values()} == {torch.float32}
    for one, other in zip(precise.states[0].unit.parameters(), block.parameters(), strict=True):
        assert (one - other).norm() <= 0.2 * one.norm() + 0.1
