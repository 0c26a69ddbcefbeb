"""SentencePiece models that its package trains, and what it makes of random strings, for tokenizer_test.

  sentence_pieces_check.py FOLDER COUNT    FOLDER/<kind>.model and FOLDER/<kind>.strings: JSON lines of text, tokens, their text
"""
import io
import json
import random
import sys

import sentencepiece

WORDS = "the quick brown fox jumps over naïve café тест привет 日本語 123 4567 3.14 foo_bar x+=1; \U0001f600 <s> </s> ▁".split(" ")


def random_string(draw):
    parts = []
    for _ in range(draw.randrange(0, 12)):
        parts.append(draw.choice(WORDS) if draw.randrange(3) else chr(draw.choice([draw.randrange(33, 127), draw.randrange(
            0xA1, 0x3000), draw.randrange(0x10000, 0x1F700)])))
        parts.append(draw.choice([" ", " ", "  ", "\n", ""]))
    return "".join(parts)


folder, count = sys.argv[1:]
draw = random.Random(1)
for kind in ("bpe", "unigram"):
    model = io.BytesIO()
    text = (" ".join(draw.choice(WORDS[:-3]) for _ in range(15)) for _ in range(500))
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=text, model_writer=model, vocab_size=340, model_type=kind, byte_fallback=kind == "bpe",
        normalization_rule_name="identity" if kind == "bpe" else "nmt_nfkc", remove_extra_whitespaces=kind != "bpe",
        minloglevel=2, hard_vocab_limit=False)
    with open(f"{folder}/{kind}.model", "wb") as out:
        out.write(model.getvalue())
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    with open(f"{folder}/{kind}.strings", "w") as out:
        for _ in range(int(count)):
            text = random_string(draw)
            tokens = pieces.encode(text)
            print(json.dumps([text, tokens, pieces.decode(tokens)]), file=out)
