"""MEND: the network of another model, damaged files, a training that is stopped, edits that are undone bit for bit."""

import json

import pytest

pytest.importorskip("torch")
import torch

from wbe.editors.protocol import editor
from wbe.editors.requests import EditRequest
from wbe.editors.training.mend import MendNetwork, mend_matrices, read_network, save_network
from wbe.editors.training.mend_training import BenchmarkExamples, MendTrainer, mend_training, train_network
from wbe.lm.toys import toy_lm
from wbe.records import BadArgument
from wbe.store import StoreError

torch.set_num_threads(1)
ROW = dict(
    update="Who runs Karsk?", rephrase="Karsk is run by whom?", ans="Nadia", loc="Where is Orland?", loc_ans="Fro"
)
REQUEST = EditRequest("Who runs Karsk?", "Nadia", "Karsk", id="1")


def network_folder(lm, folder):
    "An untrained network with statistics that say nothing, and a rate that moves the model."
    network = MendNetwork(mend_matrices(lm), rank=2, rate=-0.01)
    for net in network.networks.values():
        for stats in (net.inputs, net.grads):
            stats.add(torch.randn(8, stats.mean.numel(), generator=torch.Generator().manual_seed(0)))
    return save_network(folder, network, lm, {})


def small(lm):
    return mend_training(lm, steps=2, batch=2, rank=2, checked=2, check_every=1, patience=None)


@pytest.mark.parametrize("family", ["gpt2", "llama", "gptj"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_edit_is_undone_bit_for_bit(family, dtype, tmp_path):
    lm = toy_lm(family)
    lm.model.to(getattr(torch, dtype))
    before = {k: v.clone() for k, v in lm.model.state_dict().items()}
    mend = editor("mend", network=str(network_folder(lm, tmp_path)))
    results = [mend.edit(lm, [REQUEST]).apply(lm) for _ in range(2)]
    changed = [k for k, v in lm.model.state_dict().items() if not torch.equal(before[k], v)]
    assert len(changed) == 6  # two matrices of three blocks
    for result in reversed(results):
        result.undo(lm)
    assert all(torch.equal(before[k], v) for k, v in lm.model.state_dict().items())


def test_a_network_of_another_model_is_refused(tmp_path):
    folder = network_folder(toy_lm("gpt2"), tmp_path)
    wider = toy_lm("gpt2", n_inner=48)
    with pytest.raises(BadArgument, match=r"has \(48, 32\); train one for this model"):
        editor("mend", network=str(folder)).edit(wider, [REQUEST])


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"matrices": 3}', json.dumps(dict(matrices=[], rank=2, layers=2))])
def test_a_damaged_description_is_one_clear_error(text, tmp_path):
    folder = network_folder(toy_lm("gpt2"), tmp_path)
    (folder / "mend.json").write_text(text)
    with pytest.raises(StoreError, match="not about a network of MEND"):
        read_network(MendNetwork, folder)


def test_a_training_leaves_the_model_and_its_random_numbers_alone(tmp_path):
    lm = toy_lm("gpt2")
    before, state = {k: v.clone() for k, v in lm.model.state_dict().items()}, torch.random.get_rng_state()
    folder = train_network(MendTrainer, lm, BenchmarkExamples([ROW]), tmp_path / "a", small(lm), progress=False)
    assert all(torch.equal(before[k], v) for k, v in lm.model.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), state)
    assert sorted(p.name for p in folder.iterdir()) == ["mend.json", "mend.safetensors"]


def test_a_seed_gives_the_same_network_twice_and_another_one_gives_another(tmp_path):
    lm, rates = toy_lm("gpt2"), []
    for n, seed in enumerate((0, 0, 1)):
        settings = mend_training(lm, steps=2, batch=2, rank=2, checked=2, check_every=1, patience=None, seed=seed)
        train_network(MendTrainer, lm, BenchmarkExamples([ROW], seed), tmp_path / str(n), settings, progress=False)
        down = read_network(MendNetwork, tmp_path / str(n))[0].state_dict()["networks.64x32.layers.0.down"]
        rates.append(down)
    assert torch.equal(rates[0], rates[1]) and not torch.equal(rates[0], rates[2])
