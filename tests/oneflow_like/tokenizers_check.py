"""Tokenizers that Hugging Face's package trains, and what it makes of random strings, for tokenizer_test.

  tokenizers_check.py FOLDER COUNT SEED    for each kind of tokenizer FOLDER/<kind>.json and FOLDER/<kind>.strings: JSON
                                           lines of text, its tokens, those with special tokens around it, and their text
"""
import json
import random
import sys
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)"
          r"|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
WORDS = ("the quick brown fox can't isn't I'll WE'VE naïve café Straße über тест привет мир 日本語 中文字符 한국어 नमस्ते "
         "العربية שלום ελληνικά 123 4567 3.14 1,000,000 foo_bar foo.bar() x+=1; <|endoftext|> </s> \U0001f600 "
         "\U0001f468\u200d\U0001f469\u200d\U0001f467 e\u0301 \u1e9b\u0323 a\u030a \u212b \ufb01 \u0130 ſ").split(" ")
SPACES = [" ", " ", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n ", "\u00a0", "\u2003", "\u3000", "\u0085", "\u180e",
          "\u200b", "\u2028", "\x1c", "\x0b", "\u202f", ""]


def random_string(draw):
    parts = []
    for _ in range(draw.randrange(0, 14)):
        kind = draw.randrange(8)
        if kind < 4:
            parts.append(draw.choice(WORDS))
        elif kind == 4:
            parts.append("".join(chr(draw.randrange(32, 127)) for _ in range(draw.randrange(1, 9))))
        elif kind == 5:
            parts.append("".join(character(draw, 0x3000) for _ in range(draw.randrange(1, 6))))
        elif kind == 6:
            parts.append("".join(character(draw, 0x110000) for _ in range(draw.randrange(1, 4))))
        else:
            parts.append(draw.choice(["<|begin|>", "<|end|>", "<pad>", "<|end", "|>", "<mask>", "tool", "\u00e9t\u00e9"]))
        parts.append(draw.choice(SPACES))
    return "".join(parts)


# Any but surrogates, and what versions of Unicode after 3.2 have assigned: libraries are of several, and normal forms
# change with them.
def character(draw, below):
    while True:
        c = chr(draw.randrange(below))
        if unicodedata.ucd_3_2_0.category(c) not in ("Cs", "Cn"):
            return c


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior=behavior, invert=invert)


def byte_level(prefix=False, regex=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)


def around(first, last=None):
    return lambda t: processors.TemplateProcessing(
        single=f"{first} $A" + (f" {last}" if last else ""),
        special_tokens=[(name, t.token_to_id(name)) for name in (first, last) if name])


KINDS = {
    "gpt2": dict(words=byte_level(regex=True), special=["<|endoftext|>"]),
    "llama3": dict(words=pre_tokenizers.Sequence([split(LLAMA3), byte_level()]), special=["<|begin|>", "<|end|>"],
                   ignore_merges=True, post=around("<|begin|>")),
    "qwen2": dict(words=pre_tokenizers.Sequence([split(QWEN2), byte_level()]), normal=normalizers.NFC(),
                  special=["<|endoftext|>", "<|end|>"],
                  added=[AddedToken("\u00e9t\u00e9", normalized=True), AddedToken("tool", normalized=False)]),
    "prefix": dict(words=byte_level(prefix=True, regex=True), normal=normalizers.Sequence([normalizers.NFKD()]),
                   special=["<|begin|>", "<|end|>"], post=around("<|begin|>", "<|end|>"),
                   added=[AddedToken("<mask>", lstrip=True, special=True), AddedToken("<pad>", lstrip=True, rstrip=True)]),
    "digits": dict(words=pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                  split(r"[.,;]", "removed"), byte_level(prefix=True)]),
                   normal=normalizers.NFKC(), special=[], alphabet=False),
}


# Files of characters, as those of Llama 2 and its family: the model's tokens are learnt with a mark for spaces, then the
# steps that such files have are written around them.
MARK = "\u2581"
SPACE_TO_MARK = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
BACK = [{"type": "Replace", "pattern": {"String": MARK}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def sequence(kind, *steps):
    return {"type": "Sequence", kind: list(steps)}


def metaspace(scheme, cut=None, **more):
    cut = {} if cut is None else {"split": cut}
    return {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, **cut, **more}


CHARACTER_KINDS = {
    "llama2": dict(normalizer=sequence("normalizers", {"type": "Prepend", "prepend": MARK}, SPACE_TO_MARK),
                   decoder=sequence("decoders", *BACK, STRIP), normalized=True, bytes=range(256)),
    "llama2_new": dict(pre_tokenizer=metaspace("first", False), decoder=sequence("decoders", *BACK, STRIP), bytes=range(256),
                       ignore_merges=True),
    "gemma": dict(normalizer=SPACE_TO_MARK, decoder=sequence("decoders", *BACK), bytes=range(256), pre_tokenizer={
        "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}),
    "words": dict(pre_tokenizer=metaspace("always"), decoder=metaspace("always"), fuse_unk=True),
    "never": dict(pre_tokenizer=sequence("pretokenizers", {
        "type": "Split", "pattern": {"Regex": "[0-9a-f]"}, "behavior": "Contiguous", "invert": False}, {
            "type": "Split", "pattern": {"Regex": r"\s"}, "behavior": "MergedWithNext", "invert": False}, metaspace("never", True)),
                  decoder=sequence("decoders", metaspace("never")), bytes=range(0x20, 0xD0)),
    "replaced": dict(normalizer=sequence("normalizers", {"type": "Replace", "pattern": {"Regex": "[aeiou]+"}, "content": "-"}, {
        "type": "NFKC"}, {"type": "Prepend", "prepend": "e\u0301 "}), decoder=sequence("decoders", *BACK), normalized=True,
                     pre_tokenizer={"type": "Split", "pattern": {"String": "th"}, "behavior": "MergedWithPrevious",
                                    "invert": True}),
}


def make_characters(kind, folder, count, seed):
    about = CHARACTER_KINDS[kind]
    draw = random.Random(f"{kind} {seed}")
    text = [" ".join(draw.choice(WORDS) for _ in range(20)) for _ in range(300)]
    learner = Tokenizer(models.BPE(unk_token="<unk>"))
    learner.pre_tokenizer = pre_tokenizers.Metaspace()
    learner.train_from_iterator(text, trainers.BpeTrainer(vocab_size=420, show_progress=False,
                                                          special_tokens=["<unk>", "<s>", "</s>"]))
    learner.post_processor = around("<s>")(learner)
    learner.add_tokens([AddedToken("<mask>", lstrip=True, special=True), AddedToken("tool", normalized=True),
                        AddedToken("<pad>", rstrip=True)])
    file = json.loads(learner.to_str())
    vocab = file["model"]["vocab"]
    for byte in about.get("bytes", []):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    for i, token in enumerate(file["added_tokens"]):
        if i < 3:
            token["normalized"] = about.get("normalized", False)
        else:  # behind the model's, without a gap, which the library would close
            token["id"] = len(vocab) + i - 3
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        file[part] = about.get(part)
    file["model"].update(byte_fallback="bytes" in about, fuse_unk=about.get("fuse_unk", False),
                         ignore_merges=about.get("ignore_merges", False))
    tokenizer = Tokenizer.from_str(json.dumps(file))
    with open(f"{folder}/{kind}.json", "w") as out:
        json.dump(file, out)
    # Recent versions show added tokens as they look for them in a text that is normalised; ours show their names.
    for token in file["added_tokens"]:
        token["normalized"] = False
    write_strings(kind, tokenizer, folder, count, draw, Tokenizer.from_str(json.dumps(file)))


def make(kind, folder, count, seed):
    about = KINDS[kind]
    tokenizer = Tokenizer(models.BPE(ignore_merges=about.get("ignore_merges", False)))
    if "normal" in about:
        tokenizer.normalizer = about["normal"]
    tokenizer.pre_tokenizer = about["words"]
    tokenizer.decoder = decoders.ByteLevel()
    draw = random.Random(f"{kind} {seed}")
    text = [" ".join(draw.choice(WORDS) for _ in range(20)) for _ in range(300)]
    alphabet = pre_tokenizers.ByteLevel.alphabet() if about.get("alphabet", True) else []
    tokenizer.train_from_iterator(text, trainers.BpeTrainer(vocab_size=420, special_tokens=about["special"],
                                                            initial_alphabet=alphabet, show_progress=False))
    tokenizer.add_tokens(about.get("added", []))
    if "post" in about:
        tokenizer.post_processor = about["post"](tokenizer)
    tokenizer.save(f"{folder}/{kind}.json")
    write_strings(kind, tokenizer, folder, count, draw)


def write_strings(kind, tokenizer, folder, count, draw, decoder=None):
    with open(f"{folder}/{kind}.strings", "w") as out:
        for _ in range(count):
            text = random_string(draw)
            tokens = tokenizer.encode(text, add_special_tokens=False).ids
            whole = tokenizer.encode(text).ids
            back = (decoder or tokenizer).decode(whole, skip_special_tokens=False)
            print(json.dumps([text, tokens, whole, back]), file=out)


folder, count, seed = sys.argv[1:]
for kind in KINDS:
    make(kind, folder, int(count), seed)
for kind in CHARACTER_KINDS:
    make_characters(kind, folder, int(count), seed)
