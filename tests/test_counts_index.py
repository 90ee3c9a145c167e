"""A local Infini-gram index gives the counts of plain counting, or is refused.

Needs the package infini-gram.
"""

import random

import pytest

from wbe.analysis.counts import LocalIndex, PlainCounts
from wbe.records import BadArgument
from wbe.store import StoreError
from wbe.tiny.corpus import TrainingCorpus

pytestmark = pytest.mark.extra("infini")


@pytest.fixture(scope="module")
def texts():
    return list(TrainingCorpus(0).texts(1500, "test"))


@pytest.fixture(scope="module")
def index(texts, tmp_path_factory):
    return LocalIndex.build(texts, tmp_path_factory.mktemp("a folder, with 'marks' & spaces") / "index", "test")


def test_counts_are_those_of_plain_counting(texts, index):
    rng, plain = random.Random(1), PlainCounts(texts)
    strings = {t[at : at + n] for t in rng.sample(texts, 150) for n in (1, 2, 7, 30) for at in [rng.randrange(len(t))]}
    strings |= {s[::-1] for s in strings} | {"Şearoşehir", "ö", "aa", "  ", "\n", "日本", "\x00", "x" * 400} - {""}
    assert index.counts(strings) == plain.counts(strings)
    assert LocalIndex(index.folder).counts(["the"]) == plain.counts(["the"])
    assert index.about["documents"] == len(texts) and index.about["checked"] >= 50


def test_nothing_is_counted_across_documents(tmp_path):
    small = LocalIndex.build(["ab", "cd", "ab", "aaa"], tmp_path / "i")
    assert small.counts(["bc", "ab", "b", "aa", "d"]) == {"bc": 0, "ab": 2, "b": 2, "aa": 2, "d": 1}


@pytest.mark.parametrize("workers", [4, 8])
def test_a_wrong_index_is_detected_and_leaves_no_files(texts, tmp_path, workers):
    with pytest.raises(StoreError, match="the index is wrong|the indexer of infini-gram failed"):
        LocalIndex.build(texts[:100], tmp_path / "i", workers=workers)
    assert not (tmp_path / "i").exists()


def test_half_an_index_is_refused(texts, tmp_path):
    built = LocalIndex.build(texts[:50], tmp_path / "i")
    with pytest.raises(StoreError, match="there is an index here already"):
        LocalIndex.build(texts[:50], tmp_path / "i")
    (built.folder / "table.0").unlink()
    with pytest.raises(StoreError, match=r"table\.0 is missing"):
        LocalIndex(tmp_path / "i")
    with pytest.raises(BadArgument, match="no documents"):
        LocalIndex.build([], tmp_path / "none")
    with pytest.raises(BadArgument, match="at least one character"):
        built.counts([""])
