"""The corpus with chains: it has them and asks none that a benchmark asks later; without the switch it is as before."""

import hashlib
import json
import re

import pytest

pytest.importorskip("torch")

from wbe.records import BadArgument
from wbe.tiny.corpus import (
    CONTINUED_STAGE,
    _ChainPool,
    TrainingCorpus,
    chain_reading_document,
    is_chain_withheld,
    _two_hop_document,
)
from wbe.tiny.facts import FactPool, facts_at
from wbe.tiny.training import _Training, train_tiny
from wbe.world.files import World
from wbe.writers.templates import multihop_questions

WORLD = World(7, 500)
LAST = 5  # the last snapshot


@pytest.fixture(scope="module")
def corpora() -> dict:
    return {chains: TrainingCorpus(0, WORLD, chains=chains) for chains in (False, True)}


def test_without_the_switch_every_document_is_as_before(corpora):
    h = hashlib.sha256()
    for done in (0.0, 0.1, 0.3, 0.6, 0.9):
        corpora[False].set_progress(done)
        for i in range(60):
            h.update(repr(corpora[False].document("bytes", i)).encode())
    assert h.hexdigest() == "4c3adfac19e8c96fc7a18efd477f4aade5c65abdbed47f5dbc9d7b18d06c36eb"


def test_chains_are_a_quarter_of_the_corpus_and_half_of_them_are_read(corpora):
    corpus = corpora[True].set_progress(0.6)
    kinds = [corpus.sample_kind(_rng(i)) for i in range(3000)]
    for kind in ("chain", "chain_reading"):
        assert 0.08 < kinds.count(kind) / len(kinds) < 0.2, kind
    plain = corpora[False].set_progress(0.6)
    assert "chain_reading" not in plain.stage.percent and plain.stage.percent["chain"] == 6


def test_a_model_that_is_trained_further_has_one_stage():
    begun = TrainingCorpus(0, WORLD, chains=True, begun=True)
    assert [begun.set_progress(done).stage for done in (0.0, 1.0)] == [CONTINUED_STAGE] * 2
    assert {"chain", "chain_reading", "recall", "reading"} <= set(CONTINUED_STAGE.percent)


def _rng(i):
    from wbe.world.cast import SeededRandom

    return SeededRandom("kind", i)


def questions_over(chains) -> set[str]:
    return {q for a, b in chains for q in multihop_questions(a.subject, a.kind, (a.hop(), b.hop()))}


def asked_later(states: list[FactPool]) -> set[str]:
    "Every question over two facts of a later snapshot of which a fact was not so on the first day."
    first = {(f.subject_id, f.property_id, f.object_ids) for f in states[0].facts}
    same = lambda f: (f.subject_id, f.property_id, f.object_ids) in first
    return questions_over((a, b) for pool in states[1:] for a, b in pool.chains if not (same(a) and same(b)))


def questions_in(document, source, n: int = 400) -> set[str]:
    "The questions of some documents."
    texts = ["".join(t for t, _ in document(source, _rng(i))) for i in range(n)]
    return {q for text in texts for q in re.findall(r"Q: (.+?) A: ", text)}


def test_no_question_over_facts_that_change_is_asked_and_no_withheld_one_from_memory(corpora):
    later = asked_later([FactPool(*facts_at(WORLD, t)) for t in (0, 2, LAST)])
    assert len(later) > 1000
    corpus = corpora[True].set_progress(0.6)
    met = questions_in(_two_hop_document, corpus.known) | questions_in(chain_reading_document, corpus.told_chains)
    assert len(met) > 500 and not later & met
    plain = corpora[False].set_progress(0.6)
    assert later & questions_in(_two_hop_document, plain.known)  # without the switch some are met: the test can fail
    withheld = questions_over(c for c in corpus.known.chains if is_chain_withheld(*c))
    withheld -= questions_over(c for c in corpus.known.chains if not is_chain_withheld(*c))  # other people of one name
    assert withheld and not withheld & questions_in(_two_hop_document, corpus.known)
    told = questions_in(chain_reading_document, _ChainPool(corpus.known))  # without the changing facts, some are met
    assert later & told


def test_the_switch_is_part_of_what_a_folder_says_of_its_training(tmp_path):
    plain, chains = (_Training(tmp_path, 0, 6, 4, "cpu", True, c) for c in (False, True))
    assert "chains" not in plain.params and chains.params == plain.params | dict(chains=True)
    for here, other in ((plain, chains), (chains, plain)):
        (tmp_path / "training.json").write_text(json.dumps(here.params | dict(log=[])))
        assert here.is_done()
        with pytest.raises(BadArgument, match="chains differ"):
            other.is_done()
    assert train_tiny(tmp_path, steps=6, quick=True, progress=False, chains=True) == tmp_path  # nothing is trained
