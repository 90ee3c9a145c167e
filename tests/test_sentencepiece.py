"""Where the subject ends and the answer begins, with tokenizers that SentencePiece has trained, compared with brute
force: the library decodes ever longer beginnings of the tokens."""

import io

import pytest

from wbe.editors.requests import EditRequest
from wbe.editors.weights.keys import encode_in_contexts, encode_subjects
from wbe.lm.toys import toy_lm

spm = pytest.importorskip("sentencepiece")

NAMES = ["Karsk", "Zoë Łukasz", "São Paulo", "Łódź", "X-15", "O'Neill", "日本", "Vellmar"]
FORMS = [
    "Who is the mayor of {}?",
    "{} is where?",
    "Is {}, by the way, a city?",
    "In {}'s year, who ruled?",
    "Where is {}land?",
]
ANSWERS = ["Nadia", "Łódź", "日本", "a Karsk"]
LINES = [form.format(name) + f" A: {name}." for name in NAMES[:6] for form in FORMS] * 4
LINES += ["Karskland Vellmarland"] * 40  # so frequent that the subject ends within a token


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def model(request, tmp_path_factory):
    "A file of SentencePiece, and the processor that reads it."
    buffer = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=buffer,
        model_type=request.param,
        vocab_size=350,
        hard_vocab_limit=False,
        byte_fallback=True,
        character_coverage=1.0,
        pad_id=3,
        minloglevel=2,
    )
    path = tmp_path_factory.mktemp(request.param) / "tokenizer.model"
    path.write_bytes(buffer.getvalue())
    return path, spm.SentencePieceProcessor(model_proto=buffer.getvalue())


def by_brute_force(processor, ids: list[int], text: str, end: int) -> tuple[int, int]:
    "The subject's last token and the answer's first one: what the tokens up to each of them are as text."
    decoded = [processor.decode(ids[: i + 1]).lstrip() for i in range(len(ids))]
    subject = next(i for i, beginning in enumerate(decoded) if beginning.startswith(text[:end]))
    answer = next(i for i, beginning in enumerate(decoded) if len(beginning) > len(text) and beginning.startswith(text))
    return subject, answer


def plain_tokenizer(path):
    "transformers' tokenizer around the SentencePiece library; it knows no offsets."
    from transformers import GPTSw3Tokenizer

    return GPTSw3Tokenizer(str(path))


def converted_tokenizer(path):
    "The same pieces and merges in the tokenizers library, as for Llama 2; it knows offsets."
    from transformers import LlamaTokenizer

    processor = spm.SentencePieceProcessor(model_file=str(path))
    pieces = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    halves = [(p[:n], p[n:]) for p in pieces for n in range(1, len(p))]  # a piece of a smaller number is merged first
    return LlamaTokenizer(vocab=vocab, merges=[(a, b) for a, b in halves if a in vocab and b in vocab])


# the converted tokenizer has merges, and a unigram model has none
@pytest.mark.parametrize(
    "model,make",
    [("bpe", plain_tokenizer), ("bpe", converted_tokenizer), ("unigram", plain_tokenizer)],
    indirect=["model"],
)
def test_subject_and_answer(model, make):
    path, processor = model
    lm, cases = toy_lm("gpt2"), 0
    lm.tokenizer = make(path)
    for name in NAMES:
        for form in FORMS:
            for answer in ANSWERS:
                text = form.format(name)
                end = text.index(name) + len(name)
                (e,) = encode_subjects(lm, [text], [end], [answer])
                ids = [i for i in e.ids if not processor.is_control(i)]
                added = len(e.ids) - len(ids)
                assert ids == processor.encode(f"{text} {answer}")
                wanted = by_brute_force(processor, ids, text, end)
                assert (e.subject_at - added, e.prompt_length - added) == wanted, (text, answer)
                cases += 1
    assert cases == len(NAMES) * len(FORMS) * len(ANSWERS)


def test_contexts(model):
    path, processor = model
    lm = toy_lm("gpt2")
    lm.tokenizer = plain_tokenizer(path)
    request = EditRequest("Who is the mayor of Łódź?", "Nadia", "Łódź")
    for e in encode_in_contexts(lm, request, ["", "In the year Karsk ruled. "], "plain"):
        ids = [i for i in e.ids if not processor.is_control(i)]
        beginning = processor.decode(ids[: e.subject_at + 1 - len(e.ids) + len(ids)])
        assert beginning.endswith("mayor of Łódź") and processor.decode(e.answer).strip() == "Nadia"
