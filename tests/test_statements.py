"""The templates of statements, against labels of real properties and entities that are not part of the project."""

import gzip
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from wbe.writers.properties import STATEMENTS, _key_regex, _label_stems
from wbe.writers.templates import statement_prompts

SHARED = Path(__file__).parents[2] / "shared" / "data"
OTHER_WORDS = {"P585": "date", "P664": "organise", "P840": "set in", "P885": "source"}  # their labels say it otherwise


def real(name):
    "A file of real material; the test is skipped where it is absent."
    if not (SHARED / name).exists():
        pytest.skip("no real material at hand")
    return SHARED / name


def test_templates_say_what_the_label_of_the_real_property_says():
    labels = json.loads(real("wikidata_property_labels.json").read_text(encoding="utf-8"))
    texts = Counter()
    for (pid, _), forms in STATEMENTS.items():
        if pid in labels:
            stems = (OTHER_WORDS[pid],) if pid in OTHER_WORDS else _label_stems(labels[pid])
            texts[pid, labels[pid]] += any(re.search(_key_regex(stem), " ".join(forms).lower()) for stem in stems)
    assert len(texts) > 280
    assert [key for key, n in texts.items() if not n] == []


def test_real_names_stand_once_in_their_sentences():
    with gzip.open(real("wikidata_real_49.json.gz"), "rt", encoding="utf-8") as f:
        entities = [json.loads(line.rstrip().rstrip(",")) for line in f if line[0] == "{"]
    known, asked = {pid for pid, _ in STATEMENTS}, Counter()
    for e in entities:
        label = e.get("labels", {}).get("en", {}).get("value")
        for pid in e.get("claims", {}) if label else ():
            asked[pid in known] += len(e["claims"][pid])
            prompts = statement_prompts(pid, label) if pid in known else []
            assert all(p.count(label) == 1 and (p[0].isupper() or p.startswith(label)) for p in prompts), prompts
            assert not any("{" in p or "  " in p for p in prompts)
    assert asked[True] > 2_000  # of the statements of all kinds, identifiers and pictures among them
