#!/usr/bin/env python3
"""Writes tests/data/tokenizers: small tokenizers and what Hugging Face's library says about hard texts.

Needs the package tokenizers, and sentencepiece or its tools spm_train, spm_encode and spm_decode for the last two;
what is missing is left out. Usage:

    python make_tokenizer_fixtures.py [--output tests/data/tokenizers] text-file ...

Each directory gets a tokenizer.json (or tokenizer.model) and cases.jsonl, one object per line:
  text         the input
  ids          without honouring special tokens in the text, nothing added at the ends
  ids_special  the same, special tokens honoured; absent where equal to ids
  decoded      the text of `ids`, special tokens written out; absent where equal to text
"""
import argparse
import gzip
import io
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

try:
    import tokenizers
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
except ImportError:
    tokenizers = None

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
BLOOM = " ?[^(\\s|[.,!?…。，、।۔،])]+"

SCRIPTS = [
    "The quick brown fox jumps over the lazy dog. It's what they'll say, isn't it? I'd've thought so.",
    "Törkylempijävongahdus. Äiti öljyää työpöydän; yön yli älä syö hyvää yötä, hääyöaie.",
    "Zażółć gęślą jaźń. Pchnąć w tę łódź jeża lub ośm skrzyń fig.",
    "Pa's wijze lynx bezag vroom het fikse aquaduct; één, twee, coördinatie, 's avonds, zo'n",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Ґрунт, їжак, ъ.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. ΐ ΰ ώ Άλφα",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر؟ نعم، ١٢٣٤٥ ۔",
    "דג סקרן שט בים מאוכזב ולפתע מצא לו חברה. שָׁלוֹם",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश। १२३",
    "กินข้าวหรือยัง เป็นมนุษย์สุดประเสริฐเลิศคุณค่า ๑๒๓",
    "天地玄黃，宇宙洪荒。日月盈昃、辰宿列張！？… 我喜欢吃苹果",
    "いろはにほへと ちりぬるを カタカナ ﾊﾝｶｸ がぎぐげご は\u3099 Ｆｕｌｌ　ｗｉｄｔｈ",
    "키스의 고유조건은 입술끼리 만나야 하고 \u1112\u1161\u11ab\u1100\u1173\u11af",
    "កាន់តែពិសេសអាចខលចេញ ამ ქართული ենք հայերեն አማርኛ ᎠᎡᎢ ᠮᠣᠩ\u180eᠭ",
    "😀 👨‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇫🇮🇳🇱 ☃️ ❤ \U0001F9D1\u200d\U0001F680",
    "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, α∧¬β = ¬(¬α∨β), 2H₂ + O₂ ⇌ 2H₂O, x² ½ Ⅷ ⅞ ①②",
]

TEXTS = SCRIPTS + [
    "", " ", "  ", "   ", "    ", "\t", "\n", "\n\n", "\n\n\n", "\r\n", "\r\n\r\n", "\t\n", "\n\t", " \n", "\n ", "  \n  \n",
    "a", " a", "a ", " a ", "  a", "a  ", "a   b", "a    b", "a\tb", "a\t\tb", "a \t b", "a\nb", "a\n\nb", "a\n\n\nb", "a \n b",
    "a  \n  b", "a\r\nb", "a\r\n\r\n  b", "a\r\r\rb", "x\n    y\n        z\n\n\n    w", "tail   \n", "tail\t\t", "tail \n \n ",
    " " * 5 + "five", " " * 24 + "24", " " * 25, " " * 60 + "x" + " " * 37, "\t" * 9 + "x", "\n" * 17 + "x", " \n" * 9,
    "1", "12", "123", "1234", "12345", "123456", "1234567", "1 12 123 1234 12345", "3.14159", "1,234,567.89", "v1.2.3-rc4", "0x7fFF",
    "٣٤٥٦٧", "१२३४५", "²³¹", "½¾", "ⅣⅫ", "１２３４５", "𝟘𝟙𝟚𝟛", "a1b22c333d4444",
    "I'm you're he'd we'll they've it's can't", "I'M YOU'RE HE'D WE'LL THEY'VE IT'S CAN'T", "'LL", "'ll", "'lL", "'S's'T't'RE're'VE've'M'm'D'd",
    "it\u2019s can\u2019t", "'ſ IT'ſ", "''s", "' s", "s'", "don''t", "'", "''", "'''", "'tis 'twas", "a'b'c", "x'LLy", "l'été d'où",
    "e\u0301", "é", "e\u0301e\u0301", "caf\u0065\u0301 café", "A\u030a Å \u212b", "o\u0302\u0323 o\u0323\u0302 \u1ed9", "\u0301", " \u0301a", "a\u0301\u0302\u0303\u0304b",
    "\u1100\u1161\u11a8 각", "が か\u3099", "\u0915\u093c \u0958", "ﬁ ﬀ ﬆ", "ﷺ", "\u2126 Ω", "\u0344", "q\u0307\u0323", "\u1e9b\u0323", "Ǆ ǅ ǆ ŉ",
    "\u200d", "\u200b", "\ufeffBOM", "a\u00a0b", "\u00a0", "a\u3000b", "\u2028x\u2029y", "a\u0085b", "a\u1680b", "a\u202fb", "\u180e", " \u180ex", "a\u2003\u2003b", "\u00ad", "x\u00a0 \u00a0y", "\u3000\n\u3000",
    "👨‍👩‍👧‍👦", "👩🏽‍🚀", "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", "🇫🇮", "1️⃣", "☺️☺︎", "🙂🙃", "x🙂y", " 🙂 ", "🚀 (normal) 😶‍🌫️ ✅",
    "\u0000", "a\u0000b", "\u0001\u0002\u0003", "\u001b[31mred\u001b[0m", "\u007f", "\u0080\u009f", "a\u000bb\u000cc", "\u001c\u001d\u001e\u001f", "\u0008\u0007",
    "<|endoftext|>", "a<|endoftext|>b", " <|endoftext|> ", "<|endoftext|><|endoftext|>", "<|endoftext", "endoftext|>", "<|<|endoftext|>|>", "<|im_start|>user\nhi<|im_end|>\n",
    "<|begin_of_text|>Hello<|end_of_text|>", "<s>a</s>", "</s>", "<unk>", "<pad>", "x<pad>y", "[MASK]", "the [MASK] is", "the[MASK]is", "the  [MASK]  is", "  [MASK]  \n x",
    "word", "swords", "a word b", "aword", "worda", "(word)", "word.word", "wordword", "éword wordé", "word1 1word _word", "<norm>", "x<norm>y", "<no\u0301rm>", "caf\u0065\u0301tok", "cafétok xcafétoky",
    "(a|b)", "foo(bar)[baz]{qux}", "a.b,c!d?e…f。g，h、i।j۔k،l", "...", "....", "!?!?", "a...b", "hello|world", "x||y", "(((", ")))", "[[]]", "a , b", "§±´`^~¨", "-- --- —–", "=====", "#####  x", "//\\\\", "$100 €200 £3", "100%", "@user #tag", "a_b__c", "C++ C#", "e-mail: x@y.z", "http://www.example.org/a/b?c=d&e=f#g",
    "for (int i = 0; i < n; ++i) {\n\tprintf(\"%d\\n\", i);\n}\n", "def f(x):\n    return x + 1\n\n\nclass A:\n    pass\n", "<html>\n  <body>\n    <p>Hi &amp; bye</p>\n", "{\"a\": [1, 2.5e-3, null]}",
    "Hello World", "hello world", "HELLO WORLD", "hELLO wORLD", "helloWorld fooBarBaz XMLHttpRequest", "ÄÖÜ äöü ß ẞ", "İstanbul ıI", "ΑΒΓ αβγ ς", "Ǆ", "ꙮ", "ᏣᎳᎩ", "𐐀𐐨", "𝒜𝓑", "ａｂｃ",
    "mixедscripтs кириллицаlatin 漢字kana かなkanji abc漢字def 한글abc ไทยabc", "a٣b", "漢1字2", "שלום world עולם", "abc\u202edef\u202cghi", "\u200fشكرا\u200e",
    "▁", "▁▁a", "a▁b", " ▁ ", "Ġ", "ĠtheĊ", "Ã©", "\ufffd", "\U0010ffff", "\ue000", "\ufdd0", "\u0378",
    "a" * 50, "ab" * 60, "the" * 70, "x" * 300, "lorem" * 100, "漢" * 70, "é" * 99, "!" * 100, "9" * 41, "'" * 20, "aA" * 40, "\u0301" * 12, "🙂" * 20, "Llanfairpwllgwyngyllgogerychwyrndrobwllllantysiliogogoch",
    "epäjärjestelmällistyttämättömyydellänsäkäänköhän", "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft", "konstantynopolitańczykowianeczka",
    "In the beginning God created the heaven and the earth. And the earth was without form, and void;", "And God said, Let there be light: and there was light.",
]


def read(path):
    data = pathlib.Path(path).read_bytes()
    if path.endswith(".gz"):
        data = gzip.decompress(data)
    return data[:400_000].decode("utf-8", "ignore")


def byte_level_tokenizer(pre_tokenizer, normalizer=None, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def split(expression):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(expression), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])


def train(tokenizer, corpus, vocab_size, special=(), alphabet=True):
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, show_progress=False, special_tokens=list(special),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()) if alphabet else [])
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def gpt2(corpus):
    tokenizer = byte_level_tokenizer(pre_tokenizers.ByteLevel(add_prefix_space=False))
    train(tokenizer, corpus, 800)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def gpt2_prefix(corpus):
    """A space is put before each text; added tokens of every kind."""
    tokenizer = byte_level_tokenizer(pre_tokenizers.ByteLevel(add_prefix_space=True))
    train(tokenizer, corpus, 700, ["<pad>"])
    tokenizer.add_tokens([
        AddedToken("word", single_word=True, normalized=False),
        AddedToken("<norm>", normalized=True),
    ])
    tokenizer.add_special_tokens([AddedToken("[MASK]", lstrip=True, rstrip=True), AddedToken("<|endoftext|>", lstrip=True)])
    return tokenizer


def neox(corpus):
    tokenizer = byte_level_tokenizer(pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True), normalizers.NFC())
    train(tokenizer, corpus, 800, ["<|endoftext|>", "<|padding|>"])
    tokenizer.add_tokens([AddedToken(" " * n, normalized=True) for n in range(24, 1, -1)])
    return tokenizer


def llama3(corpus):
    tokenizer = byte_level_tokenizer(split(LLAMA3), ignore_merges=True)
    train(tokenizer, corpus, 900)
    # With ignore_merges a whole piece wins although no merge leads to it.
    state = json.loads(tokenizer.to_str())
    vocabulary = state["model"]["vocab"]
    for piece in ("Ġbegotten", "Hello", "'LL", "ĊĊĊ", "1234567", "ĠæĹ¥"):
        vocabulary.setdefault(piece, len(vocabulary))
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|endoftext|>"] + [f"<|reserved_special_token_{i}|>" for i in range(5)])
    begin = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", begin)]),
    ])
    return tokenizer


def qwen(corpus):
    tokenizer = byte_level_tokenizer(split(QWEN), normalizers.NFC())
    train(tokenizer, corpus, 800)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("caf\u0065\u0301tok", normalized=True), AddedToken("<norm>", normalized=True)])
    return tokenizer


def bloom(corpus):
    tokenizer = byte_level_tokenizer(split(BLOOM))
    train(tokenizer, corpus, 800, ["<unk>", "<s>", "</s>", "<pad>"])
    return tokenizer


def starcoder(corpus):
    """Digits one by one, before the expression of GPT-2."""
    tokenizer = byte_level_tokenizer(pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]))
    return train(tokenizer, corpus, 600, ["<|endoftext|>"])


def dolma2(corpus):
    """The expression of Llama 3 the other way round: what does not match is removed."""
    tokenizer = byte_level_tokenizer(pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3), "removed", invert=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))
    return train(tokenizer, corpus, 600, ["<|endoftext|>"])


def llama2(corpus):
    """Characters with byte fallback, spaces as U+2581, no pre-tokenizer."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # for training only
    special = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(vocab_size=900, show_progress=False, limit_alphabet=120,
                                  special_tokens=special + [f"<0x{byte:02X}>" for byte in range(256)])
    tokenizer.train_from_iterator(corpus, trainer)
    state = json.loads(tokenizer.to_str())
    state["pre_tokenizer"] = None
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] in special]
    state["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    return Tokenizer.from_str(json.dumps(state))


def metaspace(corpus):
    """Llama 2 in its newer notation."""
    tokenizer = llama2(corpus)
    state = json.loads(tokenizer.to_str())
    state["normalizer"] = None
    state["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    return Tokenizer.from_str(json.dumps(state))


def write_cases(directory, texts, encode, decode):
    with open(directory / "cases.jsonl", "w", encoding="utf-8") as file:
        for text in texts:
            case = {"text": text, "ids": encode(text, False)}
            special, decoded = encode(text, True), decode(case["ids"])
            if special != case["ids"]:
                case["ids_special"] = special
            if decoded != text:
                case["decoded"] = decoded
            file.write(json.dumps(case, ensure_ascii=False, separators=(",", ":")) + "\n")


def write_hugging_face(directory, make, corpus):
    directory.mkdir(parents=True, exist_ok=True)
    # Through the file: what is tested is what was written.
    (directory / "tokenizer.json").write_text(
        json.dumps(json.loads(make(corpus).to_str()), ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))

    def encode(text, honour_special):
        tokenizer.encode_special_tokens = not honour_special
        return tokenizer.encode(text, add_special_tokens=False).ids

    write_cases(directory, TEXTS, encode, lambda ids: tokenizer.decode(ids, skip_special_tokens=False))


def sentencepiece_options(kind):
    return dict(model_type=kind, vocab_size=700, byte_fallback=True, character_coverage=0.995, split_digits=True,
                normalization_rule_name="identity", remove_extra_whitespaces=kind != "bpe",
                user_defined_symbols="<norm>", minloglevel=2, num_threads=2)


def write_sentencepiece(directory, corpus, kind):
    sentences = [line.strip()[:2000] for text in corpus for line in text.split("\n") if line.strip()]
    # The library has no way to honour control symbols in a text: only cases without them.
    texts = [text for text in TEXTS if not any(token in text for token in ("<s>", "</s>", "<unk>"))]
    try:
        import sentencepiece
    except ImportError:
        return write_sentencepiece_with_tools(directory, sentences[:6000], texts, kind)
    directory.mkdir(parents=True, exist_ok=True)
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences[:6000]), model_writer=model, **sentencepiece_options(kind))
    (directory / "tokenizer.model").write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    write_cases(directory, texts, lambda text, _: processor.encode(text), processor.decode)


def write_sentencepiece_with_tools(directory, sentences, texts, kind):
    if not all(shutil.which(tool) for tool in ("spm_train", "spm_encode", "spm_decode")):
        raise ImportError("sentencepiece")
    directory.mkdir(parents=True, exist_ok=True)
    texts = [text for text in texts if not set(text) & set("\n\r\0")]  # a line each

    def lines(*command, text):
        done = subprocess.run(command, input="".join(line + "\n" for line in text).encode(), stdout=subprocess.PIPE, check=True)
        return done.stdout.decode("utf-8", "replace").split("\n")[:len(text)]

    with tempfile.TemporaryDirectory() as scratch:
        corpus = pathlib.Path(scratch) / "corpus.txt"
        corpus.write_text("\n".join(sentences) + "\n", encoding="utf-8")
        options = [f"--{key}={str(value).lower() if isinstance(value, bool) else value}"
                   for key, value in sentencepiece_options(kind).items()]
        subprocess.run(["spm_train", f"--input={corpus}", f"--model_prefix={scratch}/m", *options], check=True)
        shutil.copy(f"{scratch}/m.model", directory / "tokenizer.model")
    model = f"--model={directory}/tokenizer.model"
    encoded = [[int(i) for i in line.split()] for line in lines("spm_encode", model, "--output_format=id", text=texts)]
    decoded = lines("spm_decode", model, "--input_format=id", text=[" ".join(map(str, ids)) for ids in encoded])
    ids_of, text_of = dict(zip(texts, encoded)), {tuple(ids): text for ids, text in zip(encoded, decoded)}
    write_cases(directory, texts, lambda text, _: ids_of[text], lambda ids: text_of[tuple(ids)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default=str(pathlib.Path(__file__).resolve().parent / "tokenizers"))
    parser.add_argument("texts", nargs="*", help="UTF-8 text files, plain or .gz")
    arguments = parser.parse_args()
    output = pathlib.Path(arguments.output)
    corpus = [read(path) for path in arguments.texts] + SCRIPTS * 20
    # Line by line: whole files are slow to pre-tokenize in one piece.
    lines = [line + "\n" for text in corpus for line in text.split("\n")]
    made, failed = 0, []
    if tokenizers is None:
        print("tokenizers is not installed: no tokenizer.json", file=sys.stderr)
        makers = ()
    else:
        print(f"tokenizers {tokenizers.__version__}, {len(lines)} lines")
        makers = (gpt2, gpt2_prefix, neox, llama3, qwen, bloom, starcoder, dolma2, llama2, metaspace)
    for make in makers:
        try:
            write_hugging_face(output / make.__name__, make, lines)
            made += 1
        except Exception as error:  # one that this version of the library cannot do
            failed.append(make.__name__)
            print(f"{make.__name__}: {type(error).__name__}: {error}", file=sys.stderr)
    for kind in ("bpe", "unigram"):
        try:
            write_sentencepiece(output / f"sentencepiece_{kind}", corpus, kind)
            made += 1
        except ImportError:
            print("sentencepiece and its tools are not installed: no tokenizer.model", file=sys.stderr)
        except Exception as error:
            failed.append(f"sentencepiece_{kind}")
            print(f"sentencepiece_{kind}: {type(error).__name__}: {error}", file=sys.stderr)
    print(f"{made} tokenizers in {output}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
