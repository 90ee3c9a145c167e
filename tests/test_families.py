"""Two dozen families of models, from small configurations, without a download.

Scores and generated texts are those of plain passes; every editor writes what it was asked to write, or is refused in
one line; models as they are found elsewhere (tied heads, half precision, tokenizers with other special tokens) are
treated like the toys.
"""

import copy
import json
from pathlib import Path

import pytest
import torch
import transformers
from notebook_runner import definitions

from wbe.editors.protocol import editor, model_label
from wbe.editors.requests import EditRequest
from wbe.lm.sharing import greedy_decode
from wbe.lm.families import Family, ModelError
from wbe.lm.models import LM, load
from wbe.lm.scoring import score
from wbe.lm.tokens import encode_items
from wbe.lm.toys import OTHER_TOYS, TOY_CONFIGS, toy_lm, toy_model, toy_tokenizer

transformers.logging.set_verbosity_error()
torch.set_num_threads(1)

STUDY = Path(__file__).parents[1] / "nbs" / "research" / "15_families.ipynb"
study = definitions(STUDY, "CHECKED_EDITORS", "check_editor")
CHECKED_EDITORS, check_editor = study.CHECKED_EDITORS, study.check_editor

CAUSAL = [*(name for name in TOY_CONFIGS if not name.startswith("t5")), *OTHER_TOYS]
WITHOUT_MLP = {
    "mixtral": "experts in place of one MLP",
    "qwen2_moe": "experts in place of one MLP",
    "qwen3_moe": "experts in place of one MLP",
    "mamba": "a mixer, and no MLP",
}
ALIKE = ("r-rome", "ft-l", "lora-merge", "graph", "oracle")  # rome, ft, lora and the prompt compute the same
NEED_MLP = ("rome", "r-rome", "memit", "ft", "ft-l", "ultraedit", "wise")
# query, the projection out of the attention, the one out of the MLP: written by hand from the classes of transformers
MODULES = {
    "gpt_neo": "transformer.h.1 attn.attention.q_proj attn.attention.out_proj mlp.c_proj",
    "opt": "model.decoder.layers.1 self_attn.q_proj self_attn.out_proj fc2",
    "bloom": "transformer.h.1 self_attention.query_key_value self_attention.dense mlp.dense_4h_to_h",
    "falcon": "transformer.h.1 self_attention.query_key_value self_attention.dense mlp.dense_4h_to_h",
    "falcon-new": "transformer.h.1 self_attention.query_key_value self_attention.dense mlp.dense_4h_to_h",
    "falcon-rw": "transformer.h.1 self_attention.query_key_value self_attention.dense mlp.dense_4h_to_h",
    "gemma2": "model.layers.1 self_attn.q_proj self_attn.o_proj mlp.down_proj",
    "gemma3": "model.layers.1 self_attn.q_proj self_attn.o_proj mlp.down_proj",
    "phi": "model.layers.1 self_attn.q_proj self_attn.dense mlp.fc2",
    "phi3": "model.layers.1 self_attn.qkv_proj self_attn.o_proj mlp.down_proj",
    "olmo2": "model.layers.1 self_attn.q_proj self_attn.o_proj mlp.down_proj",
    "stablelm": "model.layers.1 self_attn.q_proj self_attn.o_proj mlp.down_proj",
    "starcoder2": "model.layers.1 self_attn.q_proj self_attn.o_proj mlp.c_proj",
    "cohere": "model.layers.1 self_attn.q_proj self_attn.o_proj mlp.down_proj",
    "granite": "model.layers.1 self_attn.q_proj self_attn.o_proj mlp.down_proj",
    "mpt": "transformer.blocks.1 attn.Wqkv attn.out_proj ffn.down_proj",
    "gpt_bigcode": "transformer.h.1 attn.c_attn attn.c_proj mlp.c_proj",
    "mixtral": "model.layers.1 self_attn.q_proj self_attn.o_proj -",
    "qwen2_moe": "model.layers.1 self_attn.q_proj self_attn.o_proj -",
    "qwen3_moe": "model.layers.1 self_attn.q_proj self_attn.o_proj -",
    "mamba": "backbone.layers.1 mixer.in_proj mixer.out_proj -",
}
ITEMS = [
    ("Who heads the government of Karsk?", "Nadia Bellweather"),
    ("Who heads the government of Vellmar, and since when has that been so, by the way?", "Jon Ashdown"),
    ("Why?", "1957"),
    ("Who heads the government of Orland?", "Paris"),
]


def plain_scores(lm, items=ITEMS, before=""):
    "Log-probabilities of answers: each text is one string, tokenized and passed through a copy of the model by itself."
    model, out = copy.deepcopy(lm.model), []
    for question, answer in items:
        prompt = f"{before}Q: {question} A:"
        e = lm.tokenizer(f"{prompt} {answer}", return_offsets_mapping=True)
        first = min(i for i, (_, end) in enumerate(e["offset_mapping"]) if end > len(prompt))
        ids = torch.tensor([e["input_ids"]])
        with torch.no_grad():
            logps = model(ids).logits[0, first - 1 : -1].float().log_softmax(-1)
        out.append(logps.gather(1, ids[0, first:, None]).sum().item())
    return out


def log_probabilities(lm, items=ITEMS, **options):
    return score(lm, items, "zero-shot", progress=False, **options)["log_probability"]


WAYS = (
    {},
    dict(tokens_at_once=1),
    dict(padding="left", share="nothing"),
    dict(padding="left", share="prefix"),
    dict(share="nothing"),
)


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_those_of_the_class(name):
    lm = toy_lm(name)
    block, *parts = MODULES[name].split()
    family = lm.family
    assert lm.path("block", 1) == block
    assert [family.query, family.attention_out, family.mlp_out or "-"] == parts


@pytest.mark.parametrize("name", CAUSAL)
def test_scores_are_those_of_plain_passes(name):
    lm = toy_lm(name)
    want = plain_scores(lm)
    for options in WAYS:
        assert log_probabilities(lm, **options) == pytest.approx(want, rel=1e-4), options


@pytest.mark.parametrize("name", CAUSAL)
def test_texts_are_those_of_plain_passes(name):
    lm = toy_lm(name)
    prompts = [c.ids[: c.prompt_length] for c in encode_items(lm, ITEMS, "zero-shot")]
    for prompt, text in zip(prompts, greedy_decode(lm, prompts, 3)):
        ids = list(prompt)
        for token in text.ids:
            with torch.no_grad():
                assert lm.model(torch.tensor([ids])).logits[0, -1].argmax().item() == token
            ids.append(token)


@pytest.mark.parametrize("name", CAUSAL)
def test_every_editor_writes_what_it_was_asked_to_write_or_is_refused(name):
    "Of editors that share their computation, the other families check one."
    lm = toy_lm(name)
    for editor_name in CHECKED_EDITORS if name in TOY_CONFIGS else [e for e in CHECKED_EDITORS if e not in ALIKE]:
        found = check_editor(lm, editor_name)
        if name in WITHOUT_MLP and editor_name in NEED_MLP:
            assert found.startswith(f"{editor_name} changes mlp_out") and WITHOUT_MLP[name] in found
            assert found.endswith("LoRA, retrieval and the prompt work with it") and "\n" not in found
        else:
            assert isinstance(found, float) and found < 1e-4, (editor_name, found)


@pytest.mark.parametrize("name", CAUSAL)
def test_blocks_are_those_whose_hidden_states_transformers_returns(name):
    "A second opinion on names of modules: what blocks and norm give are the model's hidden states."
    lm, ids, heard = toy_lm(name), torch.tensor([[5, 6, 7, 8]]), []
    modules = [*(lm.module("block", n) for n in range(lm.layers)), lm.module("norm")]
    for module in modules:
        module.register_forward_hook(lambda m, x, y: heard.append(y[0] if isinstance(y, tuple) else y))
    with torch.no_grad():
        states = lm.model(ids, output_hidden_states=True).hidden_states
    if name != "mamba":  # Mamba returns every block and the norm; others the embedding, and the norm for the last block
        states, heard = states[1:], [*heard[:-2], heard[-1]]
    assert len(states) == len(heard)
    for i, (state, module) in enumerate(zip(states, heard)):
        assert torch.equal(state, module.view_as(state)), (name, i)


def test_a_gemma_3_with_a_vision_tower_is_edited_in_its_language_model():
    "All but the smallest Gemma 3 are such models; UltraEdit's layers for the one of 27B are known by its depth."
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    text = dict(hidden_size=32, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=8)
    text |= dict(num_hidden_layers=62, vocab_size=400, sliding_window=16, max_position_embeddings=128)
    vision = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28)
    torch.manual_seed(0)
    model = Gemma3ForConditionalGeneration(Gemma3Config(text_config=text, vision_config=vision | dict(patch_size=14)))
    lm = LM.of(model.eval(), toy_tokenizer(), "gemma-3-27b-it")
    assert lm.path("mlp_out", 61) == "model.language_model.layers.61.mlp.down_proj"
    assert model_label(lm) == "Gemma 3 27B" and editor("ultraedit").hparams_for(lm).gate_layers == tuple(range(52, 61))
    assert log_probabilities(lm) == pytest.approx(plain_scores(lm), rel=1e-4)
    assert check_editor(lm, "rome") < 1e-4


def test_short_items_do_not_allow_what_a_window_makes_wrong_for_long_ones():
    "GPT-Neo sees 16 positions here; a tree is right for shorter texts and wrong for longer ones."
    lm, short = toy_lm("gpt_neo"), [("Who?", "I"), ("Why?", "So")]
    assert lm.window == 16
    score(lm, short, "plain", progress=False)
    assert lm.state.tried["trees"]
    assert log_probabilities(lm) == pytest.approx(plain_scores(lm), rel=1e-4)


@pytest.mark.parametrize("name", ("gpt2", "llama", "gemma3", "falcon", "opt", "mixtral"))
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_half_precision_scores_are_near_those_of_plain_passes(name, dtype):
    lm = toy_lm(name)
    lm.model.to(dtype)
    want = plain_scores(lm)
    for options in (dict(), dict(padding="left", share="nothing")):
        assert log_probabilities(lm, **options) == pytest.approx(want, rel=0.05), options


@pytest.mark.parametrize("name", ("llama", "falcon", "opt"))
def test_half_precision_values_are_written(name):
    lm = toy_lm(name)
    lm.model.bfloat16()
    assert check_editor(lm, "rome") < 0.02


@pytest.mark.parametrize("name", ("llama", "gemma3", "opt", "cohere"))
@pytest.mark.parametrize("tied", (True, False))
def test_tied_and_untied_heads(name, tied):
    lm = toy_lm(name, tie_word_embeddings=tied)
    same = lm.module("head").weight is lm.module("embed").weight
    assert same == tied
    assert log_probabilities(lm) == pytest.approx(plain_scores(lm), rel=1e-4)
    assert check_editor(lm, "lora") < 1e-4


def tokenizer_with(first=(), pad=True):
    "A byte-level tokenizer that puts tokens in front of a text, or has no padding token."
    tokenizer = toy_tokenizer("byte-level")
    if first:
        from tokenizers.processors import TemplateProcessing

        tokenizer.add_special_tokens(dict(additional_special_tokens=list(first)))
        ids = [(t, tokenizer.convert_tokens_to_ids(t)) for t in first]
        tokenizer._tokenizer.post_processor = TemplateProcessing(single=" ".join([*first, "$A"]), special_tokens=ids)
    if not pad:
        tokenizer.pad_token = None
    return tokenizer


@pytest.mark.parametrize(
    "tokenizer",
    [dict(), dict(pad=False), dict(first=("<s>",)), dict(first=("[gMASK]", "<sop>"))],
    ids=("no bos", "no padding", "bos", "two tokens in front"),
)
def test_special_tokens_of_tokenizers(tokenizer):
    lm = LM.of(toy_model("llama", vocab=420), tokenizer_with(**tokenizer), "other tokens")
    count = len(tokenizer.get("first", ()))
    assert (
        encode_items(lm, ITEMS[:1], "zero-shot")[0].ids[count:]
        == toy_tokenizer()("Q: " + " A: ".join(ITEMS[0])).input_ids
    )
    for options in WAYS:
        assert log_probabilities(lm, **options) == pytest.approx(plain_scores(lm), rel=1e-4), options
    assert check_editor(lm, "r-rome") < 1e-5


def test_a_padding_token_that_the_model_does_not_have():
    "Added to the tokenizer later, as is often done for Llama; its number lies behind the embedding."
    tokenizer = toy_tokenizer("byte-level")
    tokenizer.add_special_tokens(dict(pad_token="[PAD]"))
    lm = LM.of(toy_model("llama"), tokenizer, "padded")
    assert tokenizer.pad_token_id >= lm.vocab
    for options in WAYS:
        assert log_probabilities(lm, **options) == pytest.approx(plain_scores(lm), rel=1e-4), options
    edit = editor("lora", epochs=2).edit(lm, [EditRequest(q, a, id=q) for q, a in ITEMS])
    assert all(torch.isfinite(d.dense()).all() for d in edit.deltas.values())


def test_a_model_with_code_of_its_own_is_refused(tmp_path):
    config = dict(model_type="homemade", auto_map=dict(AutoConfig="own.OwnConfig", AutoModelForCausalLM="own.OwnModel"))
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "own.py").write_text("raise SystemExit('this code was run')")
    with pytest.raises(ModelError, match="brings its own code.*trust_remote_code=True") as e:
        load(str(tmp_path))
    assert "\n" not in str(e.value)


def test_names_given_by_hand():
    "A family of one's own names the parts; wrong names are told before anything is computed."
    model, names = toy_model("phi"), dict(block="model.layers.{}", embed="model.embed_tokens")
    own = Family(name="mine", **names, mlp="mlp", mlp_in="mlp.fc1", mlp_out="mlp.fc2")
    lm = LM.of(model, toy_tokenizer(), "mine", own)
    assert check_editor(lm, "rome") < 1e-5
    assert "lora changes query, value" in check_editor(lm, "lora")
    with pytest.raises(ModelError, match=r"mlp_out \(model.layers.0.mlp.down\)"):
        LM.of(model, toy_tokenizer(), "mine", Family(name="mine", **names, mlp_out="mlp.down"))
