"""Editing and answering beside EasyEdit: CPU seconds per edit on one thread, and whether both make the same edits.

    python tests/benchmarks/easyedit.py [--code FOLDER] [--csv FILE] [--shape gpt2|tiny | --model FOLDER]
                                         [--edits N] [--batch N] [--rounds N] [WHAT …]

FOLDER is a checkout of https://github.com/zjunlp/EasyEdit (14cea82 was tried). Without it, EasyEdit is not run: beside
ours stand the seconds that were recorded for it, with their conditions (easyedit.csv beside this file). Only the
folders of the methods, `util` and the functions of evaluation are loaded; what they import and do not use here
(trainers, judges) is replaced by empty modules. WHAT is any of rome, r-rome, memit, ft, lora, wise, grace, questions;
by default all of them.

The model has random weights in the shape of GPT-2 (12 layers, width 768, 92 million parameters, 8,192 tokens), or of
wbe-tiny, or is a real one in FOLDER with GPT-2's or Llama's architecture. Both sides get the same questions,
hyper-parameters (the preset as_published), contexts and second moments, in one process. `difference` is the relative
difference of the change of the weights, the largest of the edits; of questions, the share of answers with another
accuracy. WISE and GRACE draw masks and first values at random, so nothing is compared there but the time.
With several rounds, both sides are measured by turns; seconds are medians, and `low` and `high` the ratios' range.
"""

import argparse
import contextlib
import copy
import importlib
import io
import os
import platform
import re
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from unittest.mock import MagicMock

os.environ.setdefault("OMP_NUM_THREADS", "1")  # must be set before torch is imported
import pandas as pd
import torch
import transformers
from leaderboard import append
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
    gpt2=dict(
        rewrite_module_tmp="transformer.h.{}.mlp.c_proj",
        layer_module_tmp="transformer.h.{}",
        mlp_module_tmp="transformer.h.{}.mlp",
        attn_module_tmp="transformer.h.{}.attn",
        ln_f_module="transformer.ln_f",
        lm_head_module="transformer.wte",
    ),
    llama=dict(
        rewrite_module_tmp="model.layers.{}.mlp.down_proj",
        layer_module_tmp="model.layers.{}",
        mlp_module_tmp="model.layers.{}.mlp",
        attn_module_tmp="model.layers.{}.self_attn",
        ln_f_module="model.norm",
        lm_head_module="model.embed_tokens",
    ),
)
ADAPTED = dict(gpt2=["c_attn"], llama=["q_proj", "v_proj"])
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


def far(ours: list[dict], others: list[dict]) -> float:
    "The largest relative difference of changes of matrices."
    return max(float((a[n] - b[n]).norm() / b[n].norm()) for a, b in zip(ours, others) for n in b)


@dataclass
class Line:
    "One line of the table: what we do and what EasyEdit does, and how far apart the results are."

    what: str
    edits: int
    ours: Callable
    easyedit: Callable | None = None  # None without its code
    difference: Callable | None = None  # of what both give
    before: Callable = lambda: None  # what EasyEdit needs, and is not measured
    after: Callable = lambda: None

    def measured(self, rounds: int) -> dict:
        "Both by turns, after one call that is not measured."
        self.ours()
        mine, others, ratios, found = [], [], [], None
        for _ in range(rounds):
            seconds, ours = cpu(self.ours)
            mine.append(seconds / self.edits)
            if self.easyedit:
                self.before()
                seconds, other = cpu(self.easyedit)
                self.after()
                others.append(seconds / self.edits)
                ratios.append(others[-1] / mine[-1])
                found = self.difference and self.difference(ours, other)
        spread = dict(ratio=median(ratios), low=min(ratios), high=max(ratios)) if ratios else {}
        row = dict(what=self.what, edits=self.edits, easyedit=median(others) if others else None)
        return row | dict(ours=median(mine), difference=found) | spread


class Lines:
    "One model and its requests; a method for each editor gives lines of the table."

    def __init__(self, lm: LM, step, edits: int, batch: int, code: Path | None):
        self.lm, self.step, self.code = lm, step, code
        self.made = copy.deepcopy(lm.model)  # as transformers made it
        self.renew()
        _fuse_activations(lm.model)  # as `load` does
        rows = requests_from_rows(step.edits, step.edit_ids)
        self.requests = list({r.question: r for r in rows}.values())
        self.one_by_one = [[r] for r in self.requests[:edits]]
        self.together = [self.requests[:batch]]
        self.deep = lm.layers // 2 - 1
        self.texts = [r.question + " " + r.answer for r in self.requests]
        self.kind = lm.model.config.model_type
        self.paths = PATHS[self.kind]

    def renew(self):
        "Give EasyEdit a new copy of the model: some of its methods leave something behind."
        self.other = LM.of(copy.deepcopy(self.made), self.lm.tokenizer, self.lm.name)

    def make(self, ed, batches) -> list:
        "Our edits of some batches, each of the model as it was."
        return [ed.edit(self.lm, batch) for batch in batches]

    def weights_line(self, what: str, batches, ed, layers, call) -> Line:
        "A line of an editor of output projections; `call` makes EasyEdit's edit of a batch."

        def ours():
            return [{n: d.dense() for (_, n), d in result.deltas.items()} for result in self.make(ed, batches)]

        def change(batch):
            before = {n: self.other.weight("mlp_out", n).detach().clone() for n in layers}
            call([plain_request(r) for r in batch])
            moved = {n: (self.other.weight("mlp_out", n) - w).detach().clone() for n, w in before.items()}
            with torch.no_grad():
                for n, w in before.items():
                    self.other.weight("mlp_out", n).copy_(w)
            return moved

        easyedit = (lambda: list(map(change, batches))) if self.code else None
        return Line(what, sum(map(len, batches)), ours, easyedit, far)

    def contexts(self, module, nested: bool, lengths) -> None:
        "The same contexts for both."
        known = context_templates(self.lm, lengths, 0, "five words")
        if self.code is not None:
            texts = [re.sub("[{}]", lambda m: 4 * m[0], c) + "{}" for c in known]  # formatted twice
            module.CONTEXT_TEMPLATES_CACHE = [texts[:1], texts[1:]] if nested else texts

    def rank_one(self, what: str, folder: str) -> list[Line]:
        lengths = ((10, 5), (10, 10))
        module = theirs(f"models.{folder}.{folder}_main") if self.code else None
        self.contexts(module, False, lengths)
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
                **self.paths,
                **STATS,
            )
            call = lambda rs: getattr(module, f"apply_{folder}_to_model")(self.other.model, self.tokenizer(), rs, h)
        return [self.weights_line(f"{what}, layer {self.deep}", self.one_by_one, ed, [self.deep], call)]

    def tokenizer(self):
        "EasyEdit's methods want padding, on the right."
        tok = self.lm.tokenizer
        tok.pad_token, tok.padding_side = tok.pad_token or tok.eos_token, "right"
        return tok

    def rome(self) -> list[Line]:
        return self.rank_one("rome", "rome")

    def r_rome(self) -> list[Line]:
        return self.rank_one("r-rome", "r_rome")

    def memit(self) -> list[Line]:
        layers, lengths = list(range(self.deep - 2, self.deep + 3)), ((5, 10),)
        if self.lm.layers < 8:
            layers = list(range(1, 4))
        module = theirs("models.memit.memit_main") if self.code else None
        self.contexts(module, True, lengths)
        options = dict(corpus=self.texts, samples=len(self.texts), moment_weight=150.0, ridge=1e-2, batch=1000)
        ed = editor("memit", preset="as_published", layers=tuple(layers), contexts=lengths, steps=25, **options)
        call = None
        if self.code:
            moments = second_moments(self.lm, layers, self.texts, len(self.texts), progress=False)
            for n in layers:
                key = (
                    self.other.model.config._name_or_path.replace("/", "_"),
                    self.paths["rewrite_module_tmp"].format(n),
                )
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
                **self.paths,
                **STATS,
            )
            call = lambda rs: module.apply_memit_to_model(self.other.model, self.tokenizer(), rs, h)
        return [self.weights_line(f"memit, layers {layers[0]}–{layers[-1]}, together", self.together, ed, layers, call)]

    def fine_tuning(self, layer: int) -> Line:
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
                model_name=self.kind,
                **(self.paths | dict(rewrite_module_tmp=self.paths["rewrite_module_tmp"] + ".weight")),
            )
            call = lambda rs: module.apply_ft_to_model(self.other.model, self.tokenizer(), rs, h)
        return self.weights_line(f"ft, layer {layer}", self.one_by_one, ed, [layer], call)

    def ft(self) -> list[Line]:
        return [self.fine_tuning(0), self.fine_tuning(editor("ft").hparams_for(self.lm).layer)]

    def lora(self) -> list[Line]:
        "Adapters of rank 8 of query and value, 30 steps of one edit; the change of the matrices is not compared."
        options = dict(rank=8, alpha=32.0, dropout=0.0, epochs=30, batch_size=1, rate=5e-3 * 256, schedule="constant")
        ed = editor("lora", under="plain", **options)

        def easyedit():
            module, model = theirs("models.lora.lora_main"), self.other.model
            h = module.LoRAHyperParams(
                lora_type="lora",
                layers=[],
                num_steps=30,
                lr=5e-3,
                weight_decay=0,
                kl_factor=0,
                norm_constraint=False,
                target_modules=ADAPTED[self.kind],
                rank=8,
                lora_alpha=32,
                lora_dropout=0.0,
                device="cpu",
                alg_name="LoRA",
                model_name=self.kind,
                batch_size=1,
            )
            for batch in self.one_by_one:
                requests = [plain_request(r) for r in batch]
                module.apply_lora_to_model(model, self.tokenizer(), requests, h)[0].unload()
            if hasattr(model, "peft_config"):
                del model.peft_config
            model.gradient_checkpointing_disable()
            model.disable_input_require_grads()

        ours = lambda: self.make(ed, self.one_by_one)
        return [Line("lora", len(self.one_by_one), ours, easyedit if self.code else None)]

    def part(self, layer: int) -> str:
        "EasyEdit's name of an output projection, with brackets."
        before, after = self.paths["rewrite_module_tmp"].split(".{}.")
        return f"{before}[{layer}].{after}.weight"

    def wise(self) -> list[Line]:
        "Fifteen steps of a side memory for each edit, with ten contexts."
        layer, steps = self.lm.layers * 27 // 32, 15
        ed = editor("wise", preset="as_published", layer=layer, part="mlp_out", steps=steps, lr=1.0)
        values = dict(mask_ratio=0.2, edit_lr=1.0, n_iter=steps, norm_constraint=1.0, alpha=5.0, beta=20.0, gamma=10.0)
        more = dict(act_ratio=0.88, save_freq=500, merge_freq=1000, merge_alg="ties", weights=1.0, densities=0.53)

        def easyedit():
            module = theirs("models.wise.wise_main")
            h = module.WISEHyperParams(
                objective_optimization="only_label",
                retrieve=True,
                replay=False,
                inner_params=[self.part(layer)],
                device="cpu",
                alg_name="WISE",
                model_name=self.kind,
                **values,
                **more,
            )
            for (request,), (another,) in zip(self.one_by_one, self.one_by_one[1:] + self.one_by_one[:1]):
                rows = [plain_request(request) | dict(loc_prompt=another.question)]
                module.apply_wise_to_model(self.other.model, self.tokenizer(), rows, h)[0].reset_layer()

        if self.code:  # both after ten contexts, which EasyEdit generates once
            module = theirs("models.wise.utils")
            module.CONTEXT_TEMPLATES_CACHE = None
            module.get_context_templates(self.other.model, self.tokenizer(), [[5, 5], [10, 5]], "cpu")
        ours = lambda: self.make(ed, self.one_by_one)
        return [Line(f"wise, layer {layer}", len(self.one_by_one), ours, easyedit if self.code else None)]

    def grace_settings(self, layer: int):
        return theirs("models.grace.grace_main").GraceHyperParams(
            edit_lr=1.0,
            n_iter=50,
            eps=1.0,
            dist_fn="euc",
            val_init="cold",
            val_train="sgd",
            val_reg="None",
            reg="early_stop",
            replacement="replace_last",
            eps_expand="coverage",
            num_pert="8",
            dropout=0.0,
            inner_params=[self.part(layer)],
            device="cpu",
            alg_name="GRACE",
            model_name=self.kind,
        )

    def edit_with_grace(self, layer: int, requests):
        "EasyEdit's GRACE after some edits in sequence."
        module, h = theirs("models.grace.grace_main"), self.grace_settings(layer)
        first = None
        for r in requests:
            edited, _ = module.apply_grace_to_model(self.other.model, self.tokenizer(), [plain_request(r)], h)
            first = first or edited  # the first has the layer as it was
        return first

    def grace(self) -> list[Line]:
        "Fifty steps of a value for each edit; and questions to a model with the codebook of all edits of the batch."
        layer, options = self.lm.layers * 27 // 32, dict(part="mlp_out", steps=50)
        ed = editor("grace", preset="as_published", layer=layer, **options)

        def easyedit():
            for batch in self.one_by_one:
                self.edit_with_grace(layer, batch).reset_layer()

        groups = self.groups()
        result = ed.edit(self.lm, self.together[0])
        held = []

        def ours_asked():
            with result.on(self.lm) as lm:
                return [score(lm, g, "plain", progress=False) for g in groups]

        def theirs_asked():
            return [self.plain_accuracy(q, a) for g in groups for q, a in g]

        def with_codebook():
            held.append(self.edit_with_grace(layer, self.together[0]))

        lines = [Line(f"grace, layer {layer}", len(self.one_by_one), lambda: self.make(ed, self.one_by_one))]
        lines += [Line("five questions with grace's codebook", len(groups), ours_asked)]
        if self.code:
            lines[0].easyedit, lines[1].easyedit = easyedit, theirs_asked
            lines[1].before, lines[1].after = with_codebook, lambda: held.pop().reset_layer()
        return lines

    def plain_accuracy(self, question: str, answer: str) -> float:
        "EasyEdit's accuracy of one question."
        test = theirs("evaluate.evaluate_utils").test_prediction_acc
        h = types.SimpleNamespace(max_length=40)
        return test(self.other.model, self.tokenizer(), h, question, answer, "cpu")[0]

    def groups(self) -> list[list]:
        "The questions of edits with at least four."
        probes = self.step.probes()
        groups = [list(zip(g.question, g.expected)) for _, g in probes.groupby("edit_id", sort=False) if len(g) >= 4]
        return groups[: 20 * max(1, len(self.one_by_one) // 2)]

    def questions(self) -> list[Line]:
        "Five questions of an edit, edit by edit and twenty edits together; EasyEdit asks one at a time."
        return [self.asked(n, w) for n, w in ((1, "five questions of an edit"), (20, "of twenty edits together"))]

    def asked(self, size: int, what: str) -> Line:
        groups = self.groups()
        batches = [sum(groups[i : i + size], []) for i in range(0, len(groups), size)]

        def ours():
            scores = [score(self.lm, b, "plain", progress=False) for b in batches]
            return [x for s in scores for x in s["token_accuracy"]]

        easyedit = lambda: [self.plain_accuracy(q, a) for g in groups for q, a in g]
        apart = lambda ours, other: sum(abs(a - b) > 1e-6 for a, b in zip(ours, other)) / len(other)
        return Line(what, len(groups), ours, easyedit if self.code else None, apart)


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


def opened(args) -> Lines:
    "The lines of the model that the arguments name."
    step = Benchmark.load(SAMPLES / "benchmark")[0]
    columns = ("update", "ans", "rephrase", "personas", "loc", "loc_ans")
    texts = [t for c in columns for t in step.edits[c].to_pylist() if t]
    if not args.model:
        return Lines(shaped(args.shape, texts), step, args.edits, args.batch, args.code)
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    lm = LM.of(model.requires_grad_(False), transformers.AutoTokenizer.from_pretrained(args.model), args.model.name)
    return Lines(lm, step, args.edits, args.batch, args.code)


WHAT = ("rome", "r-rome", "memit", "ft", "lora", "wise", "grace", "questions")


def main(args):
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    lines, rows = opened(args), []  # what transformers imports by then is not replaced
    if args.code:
        load_easyedit(args.code)
    shape = args.model.name if args.model else args.shape
    for what in args.what or WHAT:
        lines.renew()
        for line in getattr(lines, what.replace("-", "_"))():
            rows.append(line.measured(args.rounds) | dict(rounds=args.rounds))
            print(rows[-1], file=sys.stderr)
            if args.append:  # at once: what follows may take long
                names = dict(line=line.what, model=shape, wbe=rows[-1]["ours"], EasyEdit=rows[-1]["easyedit"])
                append("Beside EasyEdit", [rows[-1] | names])
    table = pd.DataFrame(rows).set_index("what")
    conditions = dict(
        shape=shape,
        gflops=peak() / 1e9,
        machine=platform.processor() or platform.machine(),
        torch=torch.__version__,
        transformers=transformers.__version__,
    )
    if args.code is None and RECORDED.exists():
        known = pd.read_csv(RECORDED, index_col="what").query("shape == @shape")
        table["easyedit"] = known.easyedit * known.gflops / conditions["gflops"]
        table["ratio"] = table.easyedit / table.ours
        print("easyedit: recorded seconds, scaled by the speed of a matrix product there and here")
    print(conditions)
    print(table.map(lambda x: f"{x:.3g}" if isinstance(x, float) else x).to_string())
    if args.csv:
        table.assign(**conditions).to_csv(args.csv)


def arguments(text: str) -> argparse.Namespace:
    "The arguments that name a model, its edits and lines."
    out = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("what", nargs="*", help=f"any of {', '.join(WHAT)}; all by default")
    out.add_argument("--code", type=Path, help="a checkout of EasyEdit")
    out.add_argument("--csv", type=Path, help="write the table to this file")
    out.add_argument("--shape", default="gpt2", choices=("gpt2", "tiny"))
    out.add_argument("--model", type=Path, help="a folder with a real model, in place of a shape")
    out.add_argument("--edits", type=int, default=3, help="single edits of each editor")
    out.add_argument("--batch", type=int, default=20, help="edits of MEMIT's batch")
    out.add_argument("--rounds", type=int, default=1, help="how often both sides are measured, by turns")
    out.add_argument("--append", action="store_true", help="add the lines to LEADERBOARD.md")
    args = out.parse_args()
    if unknown := set(args.what) - set(WHAT):
        out.error(f"no line {', '.join(sorted(unknown))}; there are {', '.join(WHAT)}")
    return args


if __name__ == "__main__":
    main(arguments(__doc__))
