"""Editing and answering beside EasyEdit: CPU seconds per edit on one thread, and whether both make the same edits.

    python tests/benchmarks/easyedit.py [--code FOLDER] [--csv FILE] [--shape gpt2|tiny]
                                         [--edits N] [--batch N] [WHAT …]

FOLDER is a checkout of https://github.com/zjunlp/EasyEdit (14cea82 was tried). Without it, EasyEdit is not run: beside
ours stand the seconds that were recorded for it, with their conditions (easyedit.csv beside this file). Only the
folders of the methods, `util` and the functions of evaluation are loaded; what they import and do not use here
(trainers, judges) is replaced by empty modules. WHAT is any of rome, r-rome, memit, ft, lora, questions; by default
all of them.

The model has random weights in the shape of GPT-2 (12 layers, width 768, 92 million parameters, 8,192 tokens), or of
wbe-tiny. Both sides get the same questions, hyper-parameters (the preset as_published), contexts and second moments, in
one process. `difference` is the relative difference of the change of the weights, the largest of the edits.
"""

import argparse
import contextlib
import copy
import importlib
import io
import os
import platform
import sys
import time
import types
from pathlib import Path
from unittest.mock import MagicMock

os.environ.setdefault("OMP_NUM_THREADS", "1")  # must be set before torch is imported
import pandas as pd
import torch
import transformers
from scoring import SHAPES, peak, trained

from wbe.benchmark.reader import Benchmark
from wbe.editors.protocol import editor
from wbe.editors.requests import requests_from_rows
from wbe.editors.weights.keys import context_templates
from wbe.editors.weights.moments import second_moments
from wbe.lm.models import LM, _fuse_activations
from wbe.lm.scoring import score

SAMPLES = Path(__file__).parents[2] / "data_samples"
RECORDED = Path(__file__).with_suffix(".csv")
PATHS = dict(
    rewrite_module_tmp="transformer.h.{}.mlp.c_proj",
    layer_module_tmp="transformer.h.{}",
    mlp_module_tmp="transformer.h.{}.mlp",
    attn_module_tmp="transformer.h.{}.attn",
    ln_f_module="transformer.ln_f",
    lm_head_module="transformer.wte",
)
VALUES = dict(v_num_grad_steps=25, v_lr=0.5, v_weight_decay=1e-3, clamp_norm_factor=4.0, kl_factor=0.0625)
STATS = dict(mom2_dataset="", mom2_n_samples=1, mom2_dtype="float32", stats_dir="", device="cpu", model_name="gpt2")
NOT_USED = ("nltk", "sklearn", "sklearn.metrics", "rouge", "regex", "higher")


def load_easyedit(code: Path):
    "Make the folders of EasyEdit importable without its packages' own imports."
    for name in ("easyeditor", "easyeditor.models", "easyeditor.evaluate"):
        package = types.ModuleType(name)
        package.__path__ = [str(code.joinpath(*name.split(".")))]
        sys.modules[name] = package
    for name in ("easyeditor.trainer", *NOT_USED):
        with contextlib.suppress(ImportError):
            importlib.import_module(name) if "easyeditor" not in name else None
        sys.modules.setdefault(name, MagicMock(__all__=[]))


def theirs(name: str):
    return importlib.import_module(f"easyeditor.{name}")


def cpu(work) -> tuple[float, object]:
    "CPU seconds of some work, which prints nothing."
    start = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        out = work()
    return time.process_time() - start, out


def plain_request(r) -> dict:
    return dict(prompt=r.question, subject=r.question[slice(*r.span)], target_new=r.answer, case_id=r.id)


def changes(lm: LM, layers, work) -> dict:
    "The change of the output projections that some work makes, and the weights as before."
    before = {n: lm.weight("mlp_out", n).detach().clone() for n in layers}
    seconds, _ = cpu(work)
    moved = {n: (lm.weight("mlp_out", n) - w).detach().clone() for n, w in before.items()}
    with torch.no_grad():
        for n, w in before.items():
            lm.weight("mlp_out", n).copy_(w)
    return seconds, moved


def ours_made(lm: LM, ed, batches) -> tuple[float, list[dict]]:
    "Our seconds for some batches, and their changes; the first has been made before."
    ed.edit(lm, batches[0])
    found, total = [], 0.0
    for batch in batches:
        seconds, result = cpu(lambda batch=batch: ed.edit(lm, batch))
        total += seconds
        found.append({n: d.dense() for (_, n), d in result.deltas.items()})
    return total, found


def far(ours: list[dict], others: list[dict]) -> float:
    return max(float((a[n] - b[n]).norm() / b[n].norm()) for a, b in zip(ours, others) for n in b)


class Measure:
    "One model and its requests; a method for each editor gives a row of the table."

    def __init__(self, lm: LM, step, edits: int, batch: int, code: Path | None):
        self.lm, self.code = lm, code
        self.other = LM.of(copy.deepcopy(lm.model), lm.tokenizer, lm.name)  # EasyEdit's, as transformers made it
        _fuse_activations(lm.model)  # as `load` does
        rows = requests_from_rows(step.edits, step.edit_ids)
        self.requests = list({r.question: r for r in rows}.values())
        self.one_by_one = [[r] for r in self.requests[:edits]]
        self.together = [self.requests[:batch]]
        self.deep = lm.layers // 2 - 1
        self.texts = [r.question + " " + r.answer for r in self.requests]

    def row(self, what: str, edits: int, ours: float, other: float | None, difference=None) -> dict:
        return dict(
            what=what,
            edits=edits,
            easyedit=None if other is None else other / edits,
            ours=ours / edits,
            difference=difference,
        )

    def beside(self, what: str, batches, ed, layers, call) -> dict:
        "Ours and theirs on the same batches; `call` makes EasyEdit's edit of a batch."
        ours, found = ours_made(self.lm, ed, batches)
        if self.code is None:
            return self.row(what, sum(map(len, batches)), ours, None)
        other, moved = 0.0, []
        for batch in batches:
            seconds, change = changes(self.other, layers, lambda batch=batch: call([plain_request(r) for r in batch]))
            other += seconds
            moved.append(change)
        return self.row(what, sum(map(len, batches)), ours, other, far(found, moved))

    def contexts(self, count: int, module, nested: bool, lengths) -> None:
        "The same contexts for both."
        known = context_templates(self.lm, lengths, 0, "five words")
        if self.code is not None:
            texts = [c + "{}" for c in known]
            module.CONTEXT_TEMPLATES_CACHE = [texts[:1], texts[1:]] if nested else texts

    def rank_one(self, what: str, folder: str) -> dict:
        lengths = ((10, 5), (10, 10))
        module = theirs(f"models.{folder}.{folder}_main") if self.code else None
        self.contexts(21, module, False, lengths)
        ed = editor(what, preset="as_published", layer=self.deep, contexts=lengths, steps=25)
        call = None
        if self.code:
            cls = getattr(module, "R_ROMEHyperParams" if "r_" in folder else "ROMEHyperParams")
            h = cls(
                layers=[self.deep],
                fact_token="subject_last",
                v_loss_layer=self.lm.layers - 1,
                mom2_adjustment=False,
                context_template_length_params=[],
                alg_name=what,
                **VALUES,
                **PATHS,
                **STATS,
            )
            call = lambda rs: getattr(module, f"apply_{folder}_to_model")(self.other.model, self.tokenizer(), rs, h)
        return self.beside(f"{what}, layer {self.deep}", self.one_by_one, ed, [self.deep], call)

    def tokenizer(self):
        "EasyEdit's methods want padding, on the right."
        tok = self.lm.tokenizer
        tok.pad_token, tok.padding_side = tok.pad_token or tok.eos_token, "right"
        return tok

    def rome(self) -> dict:
        return self.rank_one("rome", "rome")

    def r_rome(self) -> dict:
        return self.rank_one("r-rome", "r_rome")

    def memit(self) -> dict:
        layers, lengths = list(range(self.deep - 2, self.deep + 3)), ((5, 10),)
        if self.lm.layers < 8:
            layers = list(range(1, 4))
        module = theirs("models.memit.memit_main") if self.code else None
        self.contexts(6, module, True, lengths)
        options = dict(corpus=self.texts, samples=len(self.texts), moment_weight=150.0, ridge=1e-2, batch=1000)
        ed = editor("memit", preset="as_published", layers=tuple(layers), contexts=lengths, steps=25, **options)
        call = None
        if self.code:
            moments = second_moments(self.lm, layers, self.texts, len(self.texts), progress=False)
            for n in layers:
                key = (self.other.model.config._name_or_path, f"transformer.h.{n}.mlp.c_proj")
                module.COV_CACHE[key] = moments[n].regular(1e-2).float()
            h = module.MEMITHyperParams(
                layers=layers,
                layer_selection="all",
                fact_token="subject_last",
                v_loss_layer=self.lm.layers - 1,
                mom2_adjustment=True,
                mom2_update_weight=150.0,
                alg_name="MEMIT",
                **(VALUES | dict(v_num_grad_steps=25, clamp_norm_factor=ed.hparams_for(self.lm).clamp)),
                **PATHS,
                **STATS,
            )
            call = lambda rs: module.apply_memit_to_model(self.other.model, self.tokenizer(), rs, h)
        return self.beside(f"memit, layers {layers[0]}–{layers[-1]}, together", self.together, ed, layers, call)

    def fine_tuning(self, layer: int) -> dict:
        ed = editor("ft", preset="as_published", layer=layer, under="plain")
        call = None
        if self.code:
            module = theirs("models.ft.ft_main")
            h = module.FTHyperParams(
                layers=[layer],
                num_steps=25,
                lr=5e-4,
                weight_decay=0,
                kl_factor=0,
                norm_constraint=False,
                objective_optimization="prompt_last",
                alg_name="FT",
                device="cpu",
                model_name="gpt2",
                **(PATHS | dict(rewrite_module_tmp="transformer.h.{}.mlp.c_proj.weight")),
            )
            call = lambda rs: module.apply_ft_to_model(self.other.model, self.tokenizer(), rs, h)
        return self.beside(f"ft, layer {layer}", self.one_by_one, ed, [layer], call)

    def ft(self) -> list[dict]:
        return [self.fine_tuning(0), self.fine_tuning(editor("ft").hparams_for(self.lm).layer)]

    def lora(self) -> dict:
        "Adapters of rank 8 of query and value, 30 steps of one edit; the change of the matrices is not compared."
        options = dict(rank=8, alpha=32.0, dropout=0.0, epochs=30, batch_size=1, rate=5e-3 * 256, schedule="constant")
        ed, lm = editor("lora", under="plain", **options), self.lm
        ours, _ = ours_made_lora(lm, ed, self.one_by_one)
        if self.code is None:
            return self.row("lora", len(self.one_by_one), ours, None)
        module, other = theirs("models.lora.lora_main"), 0.0
        h = module.LoRAHyperParams(
            lora_type="lora",
            layers=[],
            num_steps=30,
            lr=5e-3,
            weight_decay=0,
            kl_factor=0,
            norm_constraint=False,
            target_modules=["c_attn"],
            rank=8,
            lora_alpha=32,
            lora_dropout=0.0,
            device="cpu",
            alg_name="LoRA",
            model_name="gpt2",
            batch_size=1,
        )
        for batch in self.one_by_one:
            call = lambda batch=batch: module.apply_lora_to_model(
                self.other.model, self.tokenizer(), [plain_request(r) for r in batch], h
            )
            seconds, (wrapped, _) = cpu(call)
            wrapped.unload()
            other += seconds
        model = self.other.model
        if hasattr(model, "peft_config"):
            del model.peft_config
        model.gradient_checkpointing_disable()
        model.disable_input_require_grads()
        return self.row("lora", len(self.one_by_one), ours, other)

    def questions(self) -> list[dict]:
        "Five questions of an edit, edit by edit and twenty edits together; EasyEdit asks one at a time."
        return [self.asked(n, w) for n, w in ((1, "five questions of an edit"), (20, "of twenty edits together"))]

    def asked(self, size: int, what: str) -> dict:
        step = Benchmark.load(SAMPLES / "benchmark")[0]
        probes = step.probes()
        groups = [list(zip(g.question, g.expected)) for _, g in probes.groupby("edit_id", sort=False) if len(g) >= 4]
        groups, accuracy = groups[: 20 * max(1, len(self.one_by_one) // 2)], []
        batches = [sum(groups[i : i + size], []) for i in range(0, len(groups), size)]
        score(self.lm, batches[0], "plain", progress=False)
        ours, got = cpu(lambda: [score(self.lm, b, "plain", progress=False) for b in batches])
        ours_right = [x for s in got for x in s["token_accuracy"]]
        if self.code is None:
            return self.row(what, len(groups), ours, None)
        test = theirs("evaluate.evaluate_utils").test_prediction_acc
        h = types.SimpleNamespace(max_length=40)
        one = lambda q, a: test(self.other.model, self.tokenizer(), h, q, a, "cpu")
        other, accuracy = cpu(lambda: [one(q, a)[0] for g in groups for q, a in g])
        apart = sum(abs(a - b) > 1e-6 for a, b in zip(ours_right, accuracy)) / len(accuracy)
        return self.row(what, len(groups), ours, other, apart)


def ours_made_lora(lm: LM, ed, batches) -> tuple[float, list]:
    ed.edit(lm, batches[0])
    took = [cpu(lambda batch=batch: ed.edit(lm, batch)) for batch in batches]
    return sum(s for s, _ in took), [r for _, r in took]


def shaped(name: str, texts: list[str]) -> LM:
    "Random weights in a shape, with a tokenizer that is trained on the questions."
    shape = next(s for label, s in SHAPES.items() if label.startswith("92" if name == "gpt2" else "5"))
    torch.manual_seed(0)
    tokenizer = trained(texts, shape["vocab_size"])
    end = tokenizer.eos_token_id or 0
    config = transformers.GPT2Config(**shape, n_positions=256, eos_token_id=end, bos_token_id=end, pad_token_id=end)
    config._name_or_path = name
    lm = LM.of(transformers.GPT2LMHeadModel(config).eval(), tokenizer, name)
    for p in lm.model.parameters():
        p.requires_grad_(False)
    return lm


def main(args):
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    step = Benchmark.load(SAMPLES / "benchmark")[0]
    columns = ("update", "ans", "rephrase", "personas", "loc", "loc_ans")
    texts = [t for c in columns for t in step.edits[c].to_pylist() if t]
    lm = shaped(args.shape, texts)
    if args.code:
        load_easyedit(args.code)
    measure, rows = Measure(lm, step, args.edits, args.batch, args.code), []
    for what in args.what or ("rome", "r_rome", "memit", "ft", "lora", "questions"):
        made = getattr(measure, what.replace("-", "_"))()
        rows += made if isinstance(made, list) else [made]
        print(rows[-1], file=sys.stderr)
    table = pd.DataFrame(rows).set_index("what")
    conditions = dict(
        shape=args.shape,
        gflops=peak() / 1e9,
        machine=platform.processor() or platform.machine(),
        torch=torch.__version__,
        transformers=transformers.__version__,
    )
    if args.code is None and RECORDED.exists():
        known = pd.read_csv(RECORDED, index_col="what").query("shape == @args.shape")
        table["easyedit"] = known.easyedit * known.gflops / conditions["gflops"]
        print("easyedit: recorded seconds, scaled by the speed of a matrix product there and here")
    table["ratio"] = table.easyedit / table.ours
    print(conditions)
    print(table.map(lambda x: f"{x:.3g}" if isinstance(x, float) else x).to_string())
    if args.csv:
        table.assign(**conditions).to_csv(args.csv)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*")
    parser.add_argument("--code", type=Path, help="a checkout of EasyEdit")
    parser.add_argument("--csv", type=Path, help="write the table to this file")
    parser.add_argument("--shape", default="gpt2", choices=("gpt2", "tiny"))
    parser.add_argument("--edits", type=int, default=3, help="single edits of each editor")
    parser.add_argument("--batch", type=int, default=20, help="edits of MEMIT's batch")
    main(parser.parse_args())
