"""Generation token by token: the cache, padding and neighbours change nothing; draws and bridges by their laws."""

import math

import pytest
import torch
from causal_models import KINDS, VOCAB, moved_model, network, network_config, normal, pairs, plain_network, texts
from masked_models import moved
from scipy import stats

from diffusionblocks import InputError, convert
from diffusionblocks.block import plan_of
from diffusionblocks.families import causal_decoding
from diffusionblocks.families.causal_decoding import Decoding, bridged, drawn, generate
from diffusionblocks.marks import BEGIN, PAD
from diffusionblocks.randomness import keyed_generator
from diffusionblocks.sampling import PlanStep, SamplingPlan, euler

NEW = 5
CONTEXTS = {"concat": {"context": "concat", "noise_per": "token"}, "fused": {"context": "fused"}}
CONTEXT = pytest.mark.parametrize("context", CONTEXTS)
BRIDGES = ("sampled", "soft", "top-k", "hard")
CHAINS = [{"decoding": "chain", "start": start, "bridge": bridge} for start in ("zero", "noise") for bridge in BRIDGES]
WAYS = pytest.mark.parametrize("way", [{"decoding": "average"}, *CHAINS], ids=lambda way: " ".join(way.values()))


def model_of(context: str, kind: str = "llama", layers: int | str = 4):
    """Levels near the targets, where the bridge matters; conditioning and entry moved off their start."""
    settings = {"p_mean": -0.5, "sigma_max": 5.0, "conditioning": "scale-shift", "z_dropout": 0.3}
    return moved_model(network_config(kind, layers), 2, **CONTEXTS[context], **settings)


def prompts() -> torch.Tensor:
    """Of 4, 2, 0 and 3 tokens, padded on the left."""
    x = texts(4, 4)
    return x.masked_fill(torch.arange(4) < torch.tensor([0, 2, 4, 1])[:, None], PAD)


class Recorder:
    """Runs `generate` and keeps the distribution that each token (and each bridge's) was drawn from."""

    def __init__(self, monkeypatch):
        self.answers: list[torch.Tensor] = []

        def keeping(log_probs, *of):
            self.answers.append(log_probs)
            return drawn(log_probs, *of)

        monkeypatch.setattr(causal_decoding, "drawn", keeping)

    def __call__(self, networks, x, plan, **options) -> tuple[torch.Tensor, torch.Tensor]:
        """The ids, and log-probabilities (draws, B, V)."""
        self.answers = []
        ids = generate(networks, x, plan, **{"max_new_tokens": NEW, **options})
        return ids, torch.stack([answer.double().log_softmax(dim=-1) for answer in self.answers])


@pytest.fixture
def recorded(monkeypatch) -> Recorder:
    return Recorder(monkeypatch)


def same(found, expected) -> None:
    assert torch.equal(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=2e-5)


# What changes nothing.


@CONTEXT
@WAYS
def test_the_cache_changes_nothing(recorded, context, way):
    model = model_of(context)
    # More steps than blocks, so that blocks have several; the average has none.
    plan, x = plan_of(model.config, 5 if way in CHAINS[::3] else 3), prompts()
    found = recorded(model.block_list, x, plan, **way)
    same(found, recorded(model.block_list, x, plan, **way, cache=False))
    assert found[0].min() >= PAD
    assert (found[0][:, 4:] >= 0).all()
    assert torch.equal(found[0][:, :4], x)


@CONTEXT
@WAYS
def test_a_text_is_the_one_that_it_is_alone(recorded, context, way):
    """Text 0 on its own; and each prompt without its padding, in a batch with its number's key."""
    model, x = model_of(context), prompts()
    plan = plan_of(model.config, 3)
    ids, answers = recorded(model.block_list, x, plan, **way)
    found = recorded(model.block_list, x[:1], plan, **way)
    same(found, (ids[:1], answers[:, :1]))
    for row, length in ((1, 2), (2, 0), (3, 3)):
        # The rows before it are there for its number alone.
        alone = texts(row + 1, length, seed=9)
        alone[row] = x[row, 4 - length :]
        found = recorded(model.block_list, alone, plan, **way)
        same((found[0][row, length:], found[1][:, row]), (ids[row, 4:], answers[:, row]))


@pytest.mark.parametrize("kind", KINDS[1:])
@CONTEXT
@pytest.mark.parametrize("way", [{"decoding": "average"}, CHAINS[4]], ids=["average", "chain"])
def test_so_it_is_for_every_class(recorded, kind, context, way):
    model, x = model_of(context, kind), prompts()
    plan = plan_of(model.config, 3)
    ids, answers = recorded(model.block_list, x, plan, **way)
    same(recorded(model.block_list, x, plan, **way, cache=False), (ids, answers))
    same(recorded(model.block_list, x[:1], plan, **way), (ids[:1], answers[:, :1]))
    alone = texts(2, 2, seed=9)
    alone[1] = x[1, 2:]
    found = recorded(model.block_list, alone, plan, **way)
    same((found[0][1, 2:], found[1][:, 1]), (ids[1, 4:], answers[:, 1]))


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
@CONTEXT
@pytest.mark.parametrize("way", [{"decoding": "average"}, CHAINS[0]], ids=["average", "chain"])
def test_so_it_is_with_sliding_attention(recorded, kind, context, way):
    """Texts of up to 12 tokens under a window of 4, with padding and without."""
    model, x = model_of(context, kind, "sfss"), prompts()
    plan, way = plan_of(model.config, 3), {**way, "max_new_tokens": 8}
    ids, answers = recorded(model.block_list, x, plan, **way)
    same(recorded(model.block_list, x, plan, **way, cache=False), (ids, answers))
    same(recorded(model.block_list, x[:1], plan, **way), (ids[:1], answers[:, :1]))
    same(recorded(model.block_list, x[:1], plan, **way, cache=False), (ids[:1], answers[:, :1]))
    alone = texts(2, 2, seed=9)
    alone[1] = x[1, 2:]
    found = recorded(model.block_list, alone, plan, **way)
    same((found[0][1, 2:], found[1][:, 1]), (ids[1, 4:], answers[:, 1]))


@pytest.mark.parametrize("size", [1, 3])
def test_the_size_of_batches_changes_nothing(recorded, size):
    model, x = model_of("fused"), prompts()
    plan, way = plan_of(model.config, 3), CHAINS[0]
    expected = generate(model.block_list, x, plan, **way, max_new_tokens=NEW)
    assert torch.equal(generate(model.block_list, x, plan, **way, max_new_tokens=NEW, batch_size=size), expected)


def test_texts_of_one_prompt_differ_and_the_seed_keys_them():
    model = model_of("fused")
    x, plan = torch.zeros(6, 0, dtype=torch.long), plan_of(model.config, 3)
    one, again, other = (generate(model.block_list, x, plan, max_new_tokens=8, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert len({tuple(row) for row in [*one.tolist(), *other.tolist()]}) == 12


# What is generated, by hand.


@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_network_generates_as_a_loop_over_its_forward(kind):
    plain, x = plain_network(network_config(kind)), prompts()
    found = generate([plain], x, ONE, max_new_tokens=NEW, seed=3, temperature=0.8, top_p=0.9)
    for row, tokens in enumerate(x.tolist()):
        ids = [VOCAB, *(token for token in tokens if token != PAD)]
        for _ in range(NEW):
            with torch.no_grad():
                logits = plain.backbone(input_ids=torch.tensor([ids])).logits[0, -1, :VOCAB].double()
            generator = keyed_generator(3, "token", row, len(ids))
            chance = float(torch.rand(1, dtype=torch.float64, generator=generator))
            ids.append(by_hand((logits / 0.8).softmax(dim=0).tolist(), chance, 0.9))
        assert found[row, 4:].tolist() == ids[-NEW:]


ONE = SamplingPlan((PlanStep(1.0, 0.0, 0),))


def by_hand(probs: list[float], chance: float, top_p: float) -> int:
    """Of the most likely tokens, the one at which the running sum passes the chance."""
    order = sorted(range(len(probs)), key=lambda token: -probs[token])
    kept, total = [], 0.0
    for token in order:
        if total >= top_p:
            break
        kept.append(token)
        total += probs[token]
    running = 0.0
    for token in kept:
        running += probs[token]
        if running > chance * total:
            return token
    return kept[-1]


@torch.no_grad()
def test_plain_networks_generate_from_the_mean_of_their_log_probabilities(recorded):
    members, x = [plain_network(index=k) for k in range(2)], texts(2, 3)
    ids, answers = recorded(members, x, ONE)
    for step in range(NEW):
        before = torch.cat([torch.full((2, 1), BEGIN), ids[:, : 3 + step]], dim=1)
        each = torch.stack([member(before)[:, -1].double().log_softmax(dim=-1) for member in members])
        torch.testing.assert_close(answers[step], each.mean(dim=0).log_softmax(dim=-1), rtol=1e-5, atol=1e-5)


@CONTEXT
@torch.no_grad()
def test_the_average_is_that_of_the_blocks_without_noise(recorded, context):
    model, x = model_of(context), texts(2, 3)
    ids, answers = recorded(model.block_list, x, model.plan)
    for step in range(NEW):
        before = torch.cat([torch.full((2, 1), BEGIN), ids[:, : 3 + step]], dim=1)
        each = torch.stack([b.head(b.free(before))[:, -1].double().log_softmax(dim=-1) for b in model.block_list])
        torch.testing.assert_close(answers[step], each.mean(dim=0).log_softmax(dim=-1), rtol=1e-4, atol=1e-5)


@CONTEXT
@pytest.mark.parametrize("start", ["zero", "noise"])
@torch.no_grad()
def test_a_chain_is_the_plan_by_hand(recorded, context, start):
    """Step by step through whole forwards of what each place carries, with the noise of its key."""
    model, x = model_of(context), texts(1, 3)
    plan = plan_of(model.config, 3)
    ids, answers = recorded(model.block_list, x, plan, decoding="chain", start=start, bridge="soft", seed=5)
    for new in range(NEW):
        tokens = [BEGIN, *ids[0, : 3 + new].tolist()]
        noise = [causal_decoding.Noise.drawn(5, 0, place, 3, 32) for place in range(len(tokens) + 1)]
        z = None if start == "zero" else plan.steps[0].sigma * noise[-1].start
        for number, step in enumerate(plan.steps):
            block, before = model.block_list[step.block], torch.tensor([tokens])
            if z is None:
                logits = block.head(block.free(before))[0, -1]
            else:
                carried = [
                    block.targets[token] + step.sigma * noise[k + 1].context[number]
                    for k, token in enumerate(tokens[1:])
                ]
                sigma = torch.tensor([step.sigma], dtype=torch.float64)
                logits = block(before, torch.stack([*carried, z])[None], sigma)[0, -1]
            denoised = logits.softmax(dim=-1) @ block.targets
            share = step.sigma_next / step.sigma
            z = (1 - share) * denoised if z is None else denoised + share * (z - denoised)
        torch.testing.assert_close(answers[new, 0], logits.double().log_softmax(dim=-1), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("start", ["zero", "noise"])
def test_stale_keys_are_others_in_a_fused_chain(recorded, start):
    model, x = model_of("fused"), prompts()
    plan, way = plan_of(model.config, 3), {"decoding": "chain", "start": start, "bridge": "soft"}
    _, fresh = recorded(model.block_list, x, plan, **way)
    _, stale = recorded(model.block_list, x, plan, **way, stale=True)
    # The first token has nothing behind it that could be stale.
    torch.testing.assert_close(stale[0], fresh[0])
    assert (stale[1] - fresh[1]).abs().max() > 1e-3


def test_stale_keys_are_refused_where_there_are_none():
    for networks, plan in (
        ((model := model_of("concat")).block_list, model.plan),
        ([plain_network()], ONE),
    ):
        with pytest.raises(InputError, match=r"^stale="):
            generate(networks, prompts(), plan, stale=True)
    with pytest.raises(InputError, match=r"^stale=True: expected cache=True"):
        generate(model_of("fused").block_list, prompts(), plan, decoding="chain", stale=True, cache=False)


# One token.


@pytest.mark.parametrize("top_p", [1.0, 0.8, 0.3])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_drawn_by_their_probabilities(top_p, temperature):
    logits = torch.tensor([0.3, -1.0, 2.0, 1.5, -0.2, 2.0])
    count = 20_000
    chance = torch.rand(count, dtype=torch.float64, generator=keyed_generator(1, "chance"))
    found = drawn((logits / temperature).expand(count, -1), chance, top_p).bincount(minlength=6)
    probs = (logits.double() / temperature).softmax(dim=0)
    order, total, kept = sorted(range(6), key=lambda token: -float(logits[token])), 0.0, []
    while total < top_p - 1e-12:
        kept.append(order[len(kept)])
        total += float(probs[kept[-1]])
    assert sorted(found.nonzero().flatten().tolist()) == sorted(kept)
    expected = count * probs[kept] / probs[kept].sum()
    if len(kept) > 1:
        assert stats.chisquare(found[kept].numpy(), expected.numpy()).pvalue > 0.01


def test_top_p_keeps_as_few_tokens_as_have_the_share():
    log_probs = torch.tensor([0.125, 0.5, 0.25, 0.125], dtype=torch.float64).log()
    chance = torch.linspace(0, 1, 1001, dtype=torch.float64)[:-1]
    for top_p, kept in [
        (1e-9, {1}),
        (0.5, {1}),
        (0.51, {1, 2}),
        (0.75, {1, 2}),
        (0.76, {0, 1, 2}),
        (1.0, {0, 1, 2, 3}),
    ]:
        assert set(drawn(log_probs.expand(1000, -1), chance, top_p).tolist()) == kept


def test_a_chance_just_below_1_has_a_token_of_those_that_can_be():
    log_probs = torch.full((3, 5), -1e9, dtype=torch.float64)
    log_probs[:, 2] = 0.0
    log_probs[1, 4] = 0.0
    chance = torch.full((3,), math.nextafter(1.0, 0.0), dtype=torch.float64)
    assert drawn(log_probs, chance).tolist() == [2, 4, 2]
    assert drawn(torch.zeros(1, 5), chance[:1]).tolist() == [4]
    assert drawn(log_probs, 0 * chance).tolist() == [2, 2, 2]


def test_at_a_temperature_near_0_each_token_is_the_likeliest(recorded):
    model, x = model_of("fused"), prompts()
    ids, answers = recorded(model.block_list, x, model.plan, temperature=1e-6)
    assert torch.equal(ids[:, 4:].T, answers.argmax(dim=-1))
    same_by_top_p = generate(model.block_list, x, model.plan, top_p=1e-9, max_new_tokens=NEW)
    assert torch.equal(same_by_top_p, ids)


# Bridges.

STEP = PlanStep(2.0, 0.7, 0)


def answers_of(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """An answer (count, V), z and a table (V, 4), all the same in every row."""
    table = normal(6, 4, seed=3)
    return torch.tensor([0.5, 1.0, -1.0, 0.2, -0.3, 0.9]).log_softmax(dim=0).expand(count, -1), normal(4), table


@pytest.mark.parametrize("with_z", [True, False])
def test_a_sampled_bridge_has_the_law_of_z_given_a_token(with_z):
    """Of q(z' | z, y): Gaussians of z = z' + ..., z' = y + ..., by Bayes' rule."""
    count = 40_000
    answer, z, table = answers_of(count)
    z = z.expand(count, -1) if with_z else None
    generator = keyed_generator(0, "bridge")
    chance = torch.rand(count, dtype=torch.float64, generator=generator)
    eps = torch.randn(count, 4, generator=generator)
    found = bridged(answer, z, STEP, table, Decoding(bridge="sampled", bridge_temperature=0.7), chance, eps)
    tokens = drawn(answer.double() / 0.7, chance)
    expected = (answer[0].double() / 0.7).softmax(dim=0)
    assert stats.chisquare(tokens.bincount(minlength=6).numpy(), (count * expected).numpy()).pvalue > 0.01
    for token in range(6):
        rows = found[tokens == token].double()
        target, s, after = table[token].double(), STEP.sigma, STEP.sigma_next
        precision = 1 / after**2 + (1 / (s**2 - after**2) if with_z else 0.0)
        mean = target / after**2 + (z[0].double() / (s**2 - after**2) if with_z else 0.0)
        mean, variance = mean / precision, 1 / precision
        assert (rows.mean(dim=0) - mean).abs().max() < 4.5 * math.sqrt(variance / len(rows))
        assert (rows.var(dim=0) / variance - 1).abs().max() < 4.5 * math.sqrt(2 / len(rows))
        cov = torch.cov(rows.T)
        assert (cov - cov.diag().diag()).abs().max() < 4.5 * variance / math.sqrt(len(rows))


def test_a_soft_bridge_is_eulers_step():
    answer, z, table = answers_of(3)
    z = z.expand(3, -1) + normal(3, 4, seed=8)
    nothing = torch.zeros(3, dtype=torch.float64), torch.zeros(3, 4)
    found = bridged(answer, z, STEP, table, Decoding(bridge="soft"), *nothing)
    expected, _ = euler(lambda z, sigma: answer.exp() @ table, z, STEP, None)
    torch.testing.assert_close(found, expected)
    # From no z: as from an infinite level, of which the share in the target alone is kept.
    found = bridged(answer, None, STEP, table, Decoding(bridge="soft"), *nothing)
    torch.testing.assert_close(found, expected - 0.35 * z)


def test_hard_and_top_k_bridges_take_the_mean_of_what_they_keep():
    answer, z, table = answers_of(2)
    z, nothing = z.expand(2, -1), (torch.zeros(2, dtype=torch.float64), torch.zeros(2, 4))

    def target_of(**how) -> torch.Tensor:
        found = bridged(answer, z, STEP, table, Decoding(**how), *nothing)
        return ((found - 0.35 * z) / 0.65)[0]

    torch.testing.assert_close(target_of(bridge="hard"), table[1], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(target_of(bridge="top-k", bridge_top_k=1), table[1], rtol=1e-4, atol=1e-5)
    soft = target_of(bridge="soft")
    for k in (6, 100):
        torch.testing.assert_close(target_of(bridge="top-k", bridge_top_k=k), soft, rtol=1e-4, atol=1e-5)
    weights = answer[0, [1, 5]].exp() ** 2
    expected = (weights / weights.sum()) @ table[[1, 5]]
    found = target_of(bridge="top-k", bridge_top_k=2, bridge_temperature=0.5)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    cold = target_of(bridge="soft", bridge_temperature=1e-4)
    torch.testing.assert_close(cold, table[1], rtol=1e-4, atol=1e-5)


# The end of a text.


@pytest.mark.parametrize("cache", [True, False])
def test_after_the_stop_token_comes_padding(cache):
    model, x = model_of("fused"), torch.zeros(12, 0, dtype=torch.long)
    way = {"decoding": "chain", "max_new_tokens": 12, "cache": cache}
    free = generate(model.block_list, x, model.plan, **way)
    stop = int(free[0, 4])
    found = generate(model.block_list, x, model.plan, **way, stop=stop)
    ends = []
    for row, expected in zip(found.tolist(), free.tolist(), strict=True):
        end = expected.index(stop) + 1 if stop in expected else 12
        ends.append(end)
        assert row == expected[:end] + [PAD] * (12 - end)
    assert min(ends) < 12
    assert len(set(ends)) > 1
    alone = generate(model.block_list, x[:1], model.plan, **way, stop=stop)
    assert torch.equal(alone, found[:1])


def test_a_stop_token_in_a_prompt_does_not_end_it():
    model = model_of("concat")
    found = generate(model.block_list, torch.tensor([[7, 7, 7]]), model.plan, max_new_tokens=4, stop=7)
    assert found[0, 3] >= 0


def test_progress_counts_texts_by_token():
    counts = []
    generate(model_of("fused").block_list, prompts(), model_of("fused").plan, max_new_tokens=3, advance=counts.append)
    assert counts == [4, 4, 4]


# Through the model.


def test_a_model_decodes_as_its_config_says():
    settings = {"decoding": "chain", "bridge": "soft", "temperature": 0.7, "top_p": 0.9, "num_sampling_steps": 5}
    model, x = moved_model(**settings), prompts()
    kept = x.clone()
    expected = generate(
        model.block_list,
        x,
        plan_of(model.config, 5),
        decoding="chain",
        bridge="soft",
        temperature=0.7,
        top_p=0.9,
        max_new_tokens=NEW,
    )
    assert torch.equal(model.decode(x, max_new_tokens=NEW), expected)
    output = model(x, max_new_tokens=NEW)
    assert type(output).__name__ == "GenerateDecoderOnlyOutput"
    assert torch.equal(output.sequences, expected)
    assert torch.equal(x, kept)
    assert not torch.equal(model.decode(x, max_new_tokens=NEW, temperature=5.0), expected)


def test_a_number_of_steps_asks_for_the_chain():
    model, x = moved_model(), prompts()
    assert model.config.decoding == "average"
    found = model.decode(x, max_new_tokens=NEW, num_sampling_steps=3)
    assert torch.equal(found, model.decode(x, max_new_tokens=NEW, num_sampling_steps=3, decoding="chain"))
    average = model.decode(x, max_new_tokens=NEW)
    assert torch.equal(average, model.decode(x, max_new_tokens=NEW, num_sampling_steps=3, decoding="average"))
    assert not torch.equal(found, average)


def test_a_prompt_may_fill_all_but_the_new_tokens():
    model = moved_model()
    assert model.decode(texts(2, 12), max_new_tokens=4).shape == (2, 16)
    assert model.decode(torch.zeros(2, 0, dtype=torch.long), max_new_tokens=16).shape == (2, 16)


def test_generation_from_a_converted_network_starts_as_the_network():
    """A fresh fused block answers as the network did, so both generate the same text."""
    whole, x = network(network_config()), prompts()
    model = convert(whole, 1, context="fused").eval()
    plain = causal_decoding.PlainCausalLm(whole)
    expected = generate([plain], x, ONE, max_new_tokens=NEW)
    for way in ({"decoding": "average"}, {"decoding": "chain", "start": "noise"}):
        assert torch.equal(model.decode(x, max_new_tokens=NEW, **way), expected)


@pytest.mark.parametrize("context", CONTEXTS)
def test_blocks_of_a_network_in_half_precision_generate(context):
    """What is added to the network stays in fp32."""
    model = moved(convert(network(network_config()).bfloat16(), 2, **CONTEXTS[context]))
    assert {p.dtype for p in model.block_list[0].entry.parameters()} == {torch.float32}
    x, y = pairs(texts(2))
    assert torch.isfinite(model.block_list[0].loss(x, y, model.block_list[0].draw(2, keyed_generator(0)))).all()
    for way in ({"decoding": "average"}, CHAINS[0]):
        found = model.decode(prompts(), max_new_tokens=3, **way)
        assert (found[:, 4:] >= 0).all()


# Refusals.


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_new_tokens": 13}, r"^max_new_tokens=13: expected with a prompt of 4 at most seq_len=16.*12 new tokens"),
        ({"max_new_tokens": 0}, r"^max_new_tokens=0"),
        ({"top_p": 0.0}, r"^top_p=0"),
        ({"top_p": 1.1}, r"^top_p=1\.1"),
        ({"temperature": 0.0}, r"^temperature=0"),
        ({"temperature": math.inf}, r"^temperature=inf"),
        ({"bridge_temperature": 0.0}, r"^bridge_temperature=0"),
        ({"bridge_top_k": 0}, r"^bridge_top_k=0"),
        ({"bridge": "firm"}, r"^bridge='?firm.*sampled, soft, top-k, hard"),
        ({"start": "one"}, r"^start='?one.*zero, noise"),
        ({"decoding": "vote"}, r"^decoding='?vote.*average, chain"),
        ({"topp": 0.5}, r"^option=.*topp.*top_p"),
    ],
)
def test_options_out_of_range_are_refused_by_name(options, words):
    with pytest.raises(InputError, match=words) as caught:
        moved_model().decode(prompts(), **{"max_new_tokens": 2, **options})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"start": "noise"}, r"^start="),
        ({"bridge": "soft"}, r"^bridge="),
        ({"bridge_top_k": 3}, r"^bridge_top_k="),
        ({"bridge_temperature": 0.5}, r"^bridge_temperature="),
        ({"decoding": "chain"}, r"^decoding='?chain.*a run of blocks"),
        ({"topp": 0.5}, r"^option=.*topp"),
        ({"top_p": 0.0}, r"^top_p=0"),
    ],
)
def test_options_of_a_chain_are_refused_for_plain_networks(options, words):
    with pytest.raises(InputError, match=words) as caught:
        generate([plain_network()], prompts(), ONE, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.tensor([[1, VOCAB]]), rf"^token ids={VOCAB}: expected ids in 0\.\.19, or PAD = -1"),
        (torch.tensor([[BEGIN, 1]]), rf"^token ids={BEGIN}"),
        (torch.tensor([[PAD, 1, PAD]]), r"^x='?padding after a token.*pad on the left"),
        (torch.tensor([1, 2]), r"^x=.*token ids \(N, n\)"),
        (torch.zeros(2, 3), r"^x=.*token ids \(N, n\)"),
        (torch.zeros(0, 3, dtype=torch.long), r"^x=.*token ids \(N, n\)"),
        (torch.zeros(1, 16, dtype=torch.long), r"^max_new_tokens=2: .*shorten the prompt"),
    ],
)
def test_prompts_that_cannot_be_are_refused(x, words):
    for networks, plan in ((moved_model().block_list, moved_model().plan), ([plain_network()], ONE)):
        with pytest.raises(InputError, match=words):
            generate(networks, x, plan, max_new_tokens=2)


def test_the_model_of_the_tests_is_sensitive_to_its_noise(recorded):
    """The checks above would pass for blocks that do not look at z."""
    for context in CONTEXTS:
        model = moved(model_of(context))
        plan, x = plan_of(model.config, 3), prompts()
        way = {"decoding": "chain", "start": "noise", "bridge": "soft"}
        (_, one), (_, other) = (recorded(model.block_list, x, plan, **way, seed=seed) for seed in (0, 1))
        assert (one[0] - other[0]).abs().max() > 1e-2
