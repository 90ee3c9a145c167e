"""Questions to the tiny model about what it may know: which wordings are new to it, and what stands beside a fact."""

import pytest

pytest.importorskip("torch")
from wbe.tiny.facts import FactPool, fact_questions, facts_at, is_withheld
from wbe.tiny.known import _distractors, question_in_form
from wbe.world.files import World
from wbe.world.names import SeededRandom


@pytest.fixture(scope="module")
def facts() -> FactPool:
    return FactPool(*facts_at(World(7, 500)))


def test_a_new_wording_was_withheld_from_the_training_and_a_known_one_was_not(facts):
    for f in facts.askable[:300]:
        for form, new in (("rephrase", False), ("new rephrase", True)):
            if question := question_in_form(f, form):
                assert is_withheld(f, fact_questions(f).index(question)) == new


def test_no_distractor_is_about_the_asked_subject_and_property(facts):
    for n, f in enumerate(facts.askable[:300]):
        told = _distractors(f, facts, 3, SeededRandom("distractors", n))
        assert len(told) == 3
        assert (f.subject, f.property_id) not in [(g.subject, g.property_id) for g in told]
