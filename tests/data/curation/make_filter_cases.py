"""Writes the cases of tests/data/curation/text_filters_test.cpp: texts, settings and what the
published rules say of them. The rules are restated here in Python from their definitions, with
nothing but the standard library; bench/curation_filters.py compares the speed of both.

    python3 tests/data/curation/make_filter_cases.py
"""

import json
import math
import os
import random
import re
import sys
import unicodedata

# ---- characters


def characters(ranges):
    """The characters of "21-2F 3A": ranges of code points."""
    found = set()
    for item in ranges.split():
        first, _, last = item.partition("-")
        found.update(map(chr, range(int(first, 16), int(last or first, 16) + 1)))
    return found


PUNCTUATION = characters(
    "0-8 B-1F 7F-9F 21-2F 3A-40 5B-60 7B-7E AB B4 BB 2013 2014 2019 201C-201E 2026 2236 2501 25BA "
    "3001 3002 3008-300D 3010 3011 FF01 FF05 FF08 FF09 FF0C FF0E FF11 FF1A FF1B FF1F FF5E")
TERMINAL = characters(
    "21 2E 3F 589 61D-61F 6D4 700-702 7F9 837 839 83D 83E 964 965 104A 104B 1362 1367 1368 166E 1735 "
    "1736 17D4-17D6 17D9 17DA 1803 1809 1944 1945 1AA8-1AAB 1B5A 1B5B 1B5E 1B5F 1B7D 1B7E 1C3B 1C3C "
    "1C7E 1C7F 203C 203D 2047-2049 2E2E 2E3C 2E53 2E54 3002 A4FF A60E A60F A6F3 A6F7 A876 A877 A8CE "
    "A8CF A92F A9C8 A9C9 AA5D-AA5F AAF0 AAF1 ABEB FE52 FE56 FE57 FF01 FF0E FF1F FF61 10A56 10A57 "
    "10F55-10F59 10F86-10F89 11047 11048 110BE-110C1 11141-11143 111C5 111C6 111CD 111DE 111DF 11238 "
    "11239 1123B 1123C 112A9 1144B 1144C 115C2 115C3 115C9-115D7 11641 11642 1173C-1173E 11944 11946 "
    "11A42 11A43 11A9B 11A9C 11C41 11C42 11EF7 11EF8 11F43 11F44 16A6E 16A6F 16AF5 16B37 16B38 16B44 "
    "16E98 1BC9F 1DA88")

# ---- words


def character_class(accept):
    """The inside of a [class] with all characters whose category is accepted."""
    runs = []
    for code in range(sys.maxunicode + 1):
        if accept(unicodedata.category(chr(code))):
            if runs and runs[-1][1] == code - 1:
                runs[-1][1] = code
            else:
                runs.append([code, code])
    return "".join("\\U%08x-\\U%08x" % (first, last) for first, last in runs)


def any_of(items):
    return "(?:%s)" % "|".join(re.escape(item) for item in items)


ALPHA = character_class(lambda c: c[0] in "LM")
LOWER = character_class(lambda c: c[0] in "LM" and c not in ("Lu", "Lt"))
UPPER = character_class(lambda c: c[0] in "LM" and c != "Ll")
ICON = "[%s]" % character_class(lambda c: c == "So")
MARKS = list("…,:;!?¿؟¡()[]{}<>_#*&。？！，、；：～·।،۔؛٪")
QUOTES = list("'\"”“`‘´’‚,„»«「」『』（）〔〕【】《》〈〉\u2329\u232a⟦⟧")
CURRENCY = ["$", "£", "€", "¥", "฿", "US$", "C$", "A$", "﷼"] + [chr(c) for c in range(0x20A0, 0x20C0)]
UNITS = ("km km² km³ m m² m³ dm dm² dm³ cm cm² cm³ mm mm² mm³ ha µm nm yd in ft kg g mg µg t lb oz m/s "
         "km/h kmh mph hPa Pa mbar mb MB kb KB gb GB tb TB T G M K % км км² км³ м м² м³ дм дм² дм³ см "
         "см² см³ мм мм² мм³ нм кг г мг м/с км/ч кПа Па мбар Кб КБ кб Мб МБ мб Гб ГБ гб Тб ТБ كم كم² "
         "كم³ م م² م³ سم سم² سم³ مم مم² مم³ غرام جرام جم كغ ملغ كوب اكواب").split()
QUOTE_CLASS = re.escape("".join(QUOTES))

PREFIX = re.compile("|".join([any_of("§%=—–"), r"\+(?![0-9])", any_of(MARKS), r"\.\.+", any_of(QUOTES),
                              any_of(CURRENCY), ICON]))
SUFFIX = re.compile("(?:%s)$" % "|".join([
    any_of(MARKS + ["……"]), r"\.\.+", any_of(QUOTES), ICON, any_of(["'s", "'S", "’s", "’S", "—", "–"]),
    r"(?<=[0-9])\+", r"(?<=°[FfCcKk])\.", "(?<=[0-9])" + any_of(CURRENCY), "(?<=[0-9])" + any_of(UNITS),
    r"(?<=[0-9%s%%²\-+|%s%s])\." % (LOWER, re.escape("".join(MARKS)), QUOTE_CLASS),
    r"(?<=[%s][%s])\." % (UPPER, UPPER)]))
INFIX = re.compile("|".join([
    r"\.\.+", "…", ICON, r"(?<=[0-9])[+\-*^](?=[0-9-])",
    r"(?<=[%s%s])\.(?=[%s%s])" % (LOWER, QUOTE_CLASS, UPPER, QUOTE_CLASS),
    "(?<=[%s]),(?=[%s])" % (ALPHA, ALPHA),
    "(?<=[%s0-9])(?:-|–|—|--|---|——|~)(?=[%s])" % (ALPHA, ALPHA),
    "(?<=[%s0-9])[:<>=/](?=[%s])" % (ALPHA, ALPHA)]))
NAME = "A-Za-z0-9\u00a1-\uffff"
URL = re.compile(r"(?:[\w+\-.]{2,}://)?(?:\S+@)?(?:(?:[%s][%s_-]{0,62})?[%s]\.)+[%s]{2,63}(?::\d{2,5})?"
                 r"(?:[/?#]\S*)?" % (NAME, NAME, NAME, LOWER))
known_chunks = {}


def split_chunk(chunk):
    first, last, rest, size = [], [], chunk, None
    while rest and len(rest) != size:
        size = len(rest)
        prefix = PREFIX.match(rest)
        prefix = prefix.end() if prefix else 0
        suffix = SUFFIX.search(rest[prefix:])
        suffix = len(suffix.group()) if suffix else 0
        if prefix:
            first.append(rest[:prefix])
        if suffix:
            last.append(rest[size - suffix:])
        rest = rest[prefix:size - suffix]
    middle = []
    if rest and URL.fullmatch(rest):
        middle = [rest]
    elif rest:
        start = 0
        for match in INFIX.finditer(rest):
            if match.start() > 0:
                middle += [rest[start:match.start()], match.group()]
                start = match.end()
        middle.append(rest[start:])
    return [word for word in first + middle + last[::-1] if word]


def tokens(text):
    words = []
    for chunk in text.split():
        if chunk not in known_chunks:
            known_chunks[chunk] = split_chunk(chunk)
        words += known_chunks[chunk]
    return words


WORDS = {"tokens": tokens, "whitespace": str.split}


def sentences(line):
    """spaCy's sentencizer: the first word after a terminal that is no punctuation begins one."""
    count, ended = 1, False
    for word in tokens(line):
        if word in TERMINAL:
            ended = True
        elif ended and not all(unicodedata.category(c).startswith("P") for c in word):
            count, ended = count + 1, False
    return count


# ---- rules


def share(a, b):
    return a / b if b else 0.0  # datatrove fails where b is 0


QUALITY = dict(min_doc_words=50, max_doc_words=100000, min_avg_word_length=3, max_avg_word_length=10,
               max_symbol_word_ratio=0.1, max_bullet_lines_ratio=0.9, max_ellipsis_lines_ratio=0.3,
               max_non_alpha_words_ratio=0.8, min_stop_words=2,
               stop_words=["the", "be", "to", "of", "and", "that", "have", "with"])
QUALITY_OFF = {key: 0 for key in QUALITY if key != "stop_words"}


def quality_measures(text, words, stop_words):
    solid = [w for w in words if any(c not in PUNCTUATION and c not in TERMINAL for c in w)]
    lines = text.splitlines()
    return [("words_few", "min_doc_words", -1, len(solid)), ("words_many", "max_doc_words", 1, len(solid)),
            ("words_short", "min_avg_word_length", -1,
             sum(map(len, solid)) / len(solid) if solid else math.nan),
            ("words_long", "max_avg_word_length", 1,
             sum(map(len, solid)) / len(solid) if solid else math.nan),
            ("hashes", "max_symbol_word_ratio", 1, share(text.count("#"), len(words))),
            ("ellipses", "max_symbol_word_ratio", 1,
             share(text.count("...") + text.count("…"), len(words))),
            ("bullet_lines", "max_bullet_lines_ratio", 1,
             share(sum(s.lstrip().startswith(("•", "-")) for s in lines), len(lines))),
            ("ellipsis_lines", "max_ellipsis_lines_ratio", 1,
             share(sum(s.rstrip().endswith(("...", "…")) for s in lines), len(lines))),
            ("letters", "max_non_alpha_words_ratio", -1,
             sum(any(c.isalpha() for c in w) for w in words) / len(words) if words else math.nan),
            ("stop_words", "min_stop_words", -1, len(set(stop_words) & set(words)))]


def quality(text, words, settings):
    s = {**QUALITY, **settings}
    for rule, key, sign, value in quality_measures(text, words, s["stop_words"]):
        if s[key] and (value < s[key] if sign < 0 else value > s[key]):
            return "gopher_quality." + rule
    return ""


REPETITION = dict(dup_para_frac=0.3, dup_para_char_frac=0.2, dup_line_frac=0.3, dup_line_char_frac=0.2,
                  top_n_grams=[0.2, 0.18, 0.16], dup_n_grams=[0.15, 0.14, 0.13, 0.12, 0.11, 0.1])
REPETITION_OFF = dict(dup_para_frac=0, dup_para_char_frac=0, dup_line_frac=0, dup_line_char_frac=0,
                      top_n_grams=[999] * 3, dup_n_grams=[999] * 6)


def later_copies(parts):
    seen, copies = set(), []
    for part in parts:
        if part in seen:
            copies.append(part)
        seen.add(part)
    return len(copies), sum(map(len, copies))


def top_gram(words, n):
    counts = {}
    for i in range(len(words) - n + 1):
        gram = " ".join(words[i:i + n])
        counts[gram] = counts.get(gram, 0) + 1
    top = max(counts, key=counts.get, default="")  # the first of equals
    return len(top) * counts.get(top, 0)


def repeated_grams(words, n):
    seen, repeated, i = set(), 0, 0
    while i + n <= len(words):
        gram = "".join(words[i:i + n])
        if gram in seen:
            repeated += len(gram)
            i += n
        else:
            seen.add(gram)
            i += 1
    return repeated


def repetition_measures(text, words):
    paragraphs = re.split(r"\n{2,}", text.strip())
    copies, copied = later_copies(paragraphs)
    yield "dup_para_frac", "dup_para_frac", None, copies / len(paragraphs)
    yield "dup_para_char_frac", "dup_para_char_frac", None, share(copied, len(text))
    lines = re.split(r"\n+", text)
    copies, copied = later_copies(lines)
    yield "dup_line_frac", "dup_line_frac", None, copies / len(lines)
    yield "dup_line_char_frac", "dup_line_char_frac", None, share(copied, len(text))
    for n in (2, 3, 4):
        yield "top_%d_gram" % n, "top_n_grams", n - 2, share(top_gram(words, n), len(text))
    for n in range(5, 11):
        yield "dup_%d_grams" % n, "dup_n_grams", n - 5, share(repeated_grams(words, n), len(text))


def repetition(text, words, settings):
    s = {**REPETITION, **settings}
    for rule, key, place, value in repetition_measures(text, words):
        threshold = s[key] if place is None else s[key][place]
        if (threshold or place is not None) and value > threshold:
            return "gopher_repetition." + rule
    return ""


FINEWEB = dict(line_punct_thr=0.12, line_punct_exclude_zero=False, short_line_thr=0.67,
               short_line_length=30, char_duplicates_ratio=0.01, new_line_ratio=0.3)
FINEWEB_OFF = dict(line_punct_thr=-1, short_line_thr=999, char_duplicates_ratio=999, new_line_ratio=999)


def fineweb_measures(text, words, short):
    lines = [line for line in text.split("\n") if line.strip()]
    yield ("line_punct", "line_punct_thr", -1,
           sum(line[-1] in TERMINAL for line in lines) / len(lines))
    yield ("short_lines", "short_line_thr", 1, sum(len(line) <= short for line in lines) / len(lines))
    yield ("char_duplicates", "char_duplicates_ratio", 1,
           later_copies(lines)[1] / len(text.replace("\n", "")))
    yield "new_lines", "new_line_ratio", 1, text.count("\n") / len(words)


def fineweb(text, words, settings):
    s = {**FINEWEB, **settings}
    if not text.strip():
        return "fineweb_quality.empty"
    for rule, key, sign, value in fineweb_measures(text, words, s["short_line_length"]):
        if sign < 0 and value == 0 and s["line_punct_exclude_zero"]:
            continue
        if value < s[key] if sign < 0 else value > s[key]:
            return "fineweb_quality." + rule
    return ""


C4 = dict(max_word_length=1000, remove_citations=True, filter_no_terminal_punct=True,
          min_words_per_line=3, filter_lorem_ipsum=True, filter_javascript=True,
          filter_curly_bracket=True, filter_policy=True, min_num_sentences=5)
POLICIES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies",
            "use cookies")


def c4(text, settings):
    """The rule, and the text that is left."""
    s = {**C4, **settings}
    kept, count = [], 0
    for line in map(str.strip, text.splitlines()):
        words = line.split()
        if s["max_word_length"] and any(len(word) > s["max_word_length"] for word in words):
            continue
        if s["remove_citations"]:
            line = re.sub(r"\[\d*\]|\[edit\]|\[citation needed\]", "", line)
        if s["filter_no_terminal_punct"] and (not line.endswith((".", "?", "!", '"', "'")) or
                                              line.endswith("...")):
            continue
        if len(words) < s["min_words_per_line"]:
            continue
        lower = line.lower()
        if s["filter_lorem_ipsum"] and "lorem ipsum" in lower:
            return "c4.lorem_ipsum", text
        if s["filter_javascript"] and "javascript" in lower:
            continue
        if s["filter_curly_bracket"] and "{" in line:
            return "c4.curly_bracket", text
        if s["filter_policy"] and any(phrase in lower for phrase in POLICIES):
            continue
        count += sentences(line)
        kept.append(line)
    if count < s["min_num_sentences"]:
        return "c4.sentences", text
    return "", "\n".join(kept).strip()


REFINEDWEB = dict(max_uppercase_ratio=0.5, max_numeric_ratio=0.999999, remove_counters=True, min_words_per_line=2,
                  remove_phrases=True, max_words_of_phrase_lines=10, max_removed_ratio=0.05)
COUNTER = re.compile(r"\W*\d[,.\d]*[kmb]?\s+(?:likes|shares|comments|retweets|reposts|quotes|bookmarks|upvotes|"
                     r"downvotes|downloads|views|followers)\W*\Z")
CUTS = [re.compile(pattern, re.I)
        for pattern in (r"\s?items in cart", r"\s?read more...\Z", r"\Asign-in\s?")]


def refinedweb(text, settings):
    """The rule, and the text that is left. Each stage strips the document, as in DCLM."""
    s = {**REFINEDWEB, **settings}

    def counted(content):
        return sum(word[0].isalnum() for word in content.split())

    def stage(content, keep):
        return "\n".join(line for line in content.split("\n") if not line or keep(line))

    left = stage(text, lambda line: sum(map(str.isupper, line)) / len(line) <= s["max_uppercase_ratio"]).strip()
    left = stage(left, lambda line: sum(map(str.isdigit, line)) / len(line) <= s["max_numeric_ratio"]).strip()
    if s["remove_counters"]:
        left = stage(left, lambda line: not COUNTER.match(line.lower())).strip()
    left = stage(left, lambda line: len(line.split()) >= s["min_words_per_line"])
    for pattern in CUTS if s["remove_phrases"] else []:
        lines = []
        for line in left.split("\n"):
            if line and len(line.split()) <= s["max_words_of_phrase_lines"]:
                line = pattern.sub("", line)
                if not line or line.isspace():
                    continue
            lines.append(line)
        left = "\n".join(lines).strip()
    if not left or not counted(text):
        return "refinedweb_lines.empty", text
    if (counted(text) - counted(left)) / counted(text) > s["max_removed_ratio"]:
        return "refinedweb_lines.words", text
    return "", left


def c4_paragraphs(text, settings):
    s = {**dict(min_paragraphs=3, min_paragraph_len=200), **settings}
    lengths = sorted(map(len, text.split("\n")))[-s["min_paragraphs"]:] if s["min_paragraphs"] else []
    few = len(lengths) < s["min_paragraphs"] or (lengths and min(lengths) < s["min_paragraph_len"])
    return "c4_paragraphs.few" if few else ""


def c4_bad_words(text, entries, inside_words):
    pattern = "|".join(map(re.escape, entries))
    if not inside_words:
        pattern = r"(?:\W|^)(?:%s)(?:\W|$)" % pattern
    return "c4_bad_words.listed" if re.search(pattern, text.lower()) else ""


# ---- texts

LANGUAGES = [
    "The ship left the harbour with the tide, and nobody saw that it had no light. Have you seen it?",
    "Het schip verliet de haven en niemand zag dat er geen licht brandde! Dat is 's nachts gevaarlijk.",
    "Das Schiff verließ den Hafen, und niemand sah, daß es kein Licht hatte; „so“ fährt man nicht.",
    "Le navire quitta l'église du port à l'aube… Personne n'a vu qu'il n'avait pas de lumière ?",
    "El barco salió del puerto con la marea. ¿Nadie vio que no tenía luz? ¡Qué extraño!",
    "Statek wypłynął z portu o świcie i nikt nie zauważył, że nie miał światła (źle).",
    "Laiva lähti satamasta aamulla, eikä kukaan nähnyt, että siinä ei ollut valoa.",
    "Корабль вышел из порта на рассвете, и никто не заметил, что на нём не было огней.",
    "Το πλοίο έφυγε από το λιμάνι την αυγή και κανείς δεν είδε φως.",
    "غادرت السفينة الميناء عند الفجر، ولم ير أحد أنها بلا ضوء؟",
    "जहाज सुबह बंदरगाह से चला गया। किसी ने नहीं देखा कि उस पर रोशनी नहीं थी॥",
    "船は夜明けに港を出た。誰も明かりがないことに気づかなかった！",
    "那艘船在黎明离开了港口，没有人看到它没有灯。",
    "เรือออกจากท่าตอนรุ่งสาง ไม่มีใครเห็นว่าไม่มีไฟ",
    "배는 새벽에 항구를 떠났고 불빛이 없는 것을 아무도 보지 못했다."]
BREAKS = ["\n", "\r\n", "\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\n\n",
          "\n\n\n", " \n", "\n ", "\t\n", "\n\u00a0\n"]
SPACES = [" ", "  ", "\t", "\u00a0", "\u2003", "\u3000", "\x1f"]
ODD = ["#", "##tag", "...", "…", "....", "......", "•", "-", "--", "e\u0301", "n\u0303a", "🙂", "👍🏽",
       "👩\u200d🚀", "12", "3.5", "1,000", "5km", "20%", "US$5", "$5", "5€", "A.", "U.S.", "e.g.", "don't",
       "it's", "C++", "x=y", "a/b", "a-b", "end.Next", "www.example.org/a-b?c=d", "me@example.org",
       "http://example.org", "\u200b", "ﬁn", "!", "?!", "(", ")", "\"", "«oui»", "“so”", "—", "a—b",
       "[1]", "[edit]", "{", "}", "۵", "١٢", "²", "m²", "½", "ʰ", "ª", "_", "__init__", "\x07", "\x7f"]
EMPTY = ["", " ", "\n", "\n\n", " \n ", "\u2028", "\u00a0", "\r\n", "a", ".", "#", "...", "…", "-", "•",
         "🙂", "\u0301", "漢", "the", "a\n", "\na", "a\na", "a\n\na", "a a", "a a a", ". . .", "\x07",
         "a\n\n\na\n\na", "\n\na\n\na\n\n", "x" * 1000]


def vocabulary():
    return [word for text in LANGUAGES for word in text.split()]


def text_of(draw, words, length, breaks=0.08, odd=0.1):
    parts = []
    for _ in range(length):
        parts.append(draw.choice(ODD) if draw.random() < odd else draw.choice(words))
        parts.append(draw.choice(BREAKS) if draw.random() < breaks else
                     " " if draw.random() < 0.9 else draw.choice(SPACES))
    return "".join(parts)


def texts(draw, count, repetitive):
    """Texts of one or several languages, some with few different words and lines."""
    everything = vocabulary()
    for i in range(count):
        words = LANGUAGES[i % len(LANGUAGES)].split() if i % 3 else everything
        if repetitive:
            words = draw.sample(words, min(len(words), draw.choice([1, 2, 3, 5, 9, 20])))
        text = text_of(draw, words, draw.choice([1, 3, 8, 15, 40, 70]), draw.choice([0, 0.05, 0.2, 0.5]),
                       draw.choice([0, 0.1, 0.4]))
        if repetitive and i % 2:
            lines = text.split("\n")
            text = draw.choice(["\n", "\n\n"]).join(draw.choice(lines) for _ in range(len(lines) + 2))
        yield text


def around(value):
    """A threshold that the value just reaches, one below and one above."""
    if isinstance(value, int):
        return [value - 1, value, value + 1]
    return [math.nextafter(value, -math.inf), value, math.nextafter(value, math.inf)]


def compact(text):
    """A text as parts: one that is repeated is [part, count]."""
    match = re.fullmatch(r"(?s)(.{1,40}?)\1{20,}(.*)", text)
    if not match:
        return text
    part = match.group(1)
    count = (len(text) - len(match.group(2))) // len(part)
    return [[part, count], [match.group(2), 1]]


class Cases:
    """Checks of a rule set, by text: [how words are split, whether all other rules are off, settings,
    the rule that the text breaks]."""

    def __init__(self, rule_set, off):
        self.rule_set, self.off, self.checks = rule_set, off, {}

    def add(self, text, mode, off=False, **settings):
        removed = self.rule_set(text, WORDS[mode](text), {**self.off, **settings} if off else settings)
        self.checks.setdefault(text, []).append([mode, off, settings, removed])

    def add_measured(self, text, mode, draw, count, rules):
        """The default settings, and the thresholds around what some rules measure."""
        self.add(text, mode)
        for _, key, place, value in draw.sample(rules, min(count, len(rules))):
            for threshold in around(value) if value == value else []:
                if threshold < 0 or (key == "max_non_alpha_words_ratio" and threshold > 1):
                    continue
                if isinstance(self.off[key], list):
                    threshold = [threshold if i == place else 999 for i in range(len(self.off[key]))]
                self.add(text, mode, True, **{key: threshold})


# ---- cases


def quality_cases(draw):
    cases = Cases(quality, QUALITY_OFF)

    def add(text, off=False, **settings):
        for mode in WORDS:
            cases.add(text, mode, off, **settings)

    for text in EMPTY:
        add(text)
        add(text, True, max_non_alpha_words_ratio=0.8, min_stop_words=1)
    for count in (49, 50, 51, 100000, 100001):
        add("ship " * count, min_stop_words=0)
        add("ship " * count + "!! " * 7, min_stop_words=0, max_non_alpha_words_ratio=0)
    for word in ("abc", "äöü", "漢字仮", "e\u0301o", "abcdefghij"):
        for change in (-1, 0, 1):  # from 50 words of 3 or 10 characters
            changed = word[:change] if change < 0 else word + "z" * change
            add((word + " ") * 49 + changed, min_stop_words=0)
    for count in range(8, 14):
        add("ship " * 90 + "# " * count, min_stop_words=0)
        add("ship " * 90 + "... " * count, min_stop_words=0)
        add("ship " * 90 + "#ship " * count + "sea… " * (count // 2), min_stop_words=0)
    for separator in BREAKS[:11]:
        for count in (8, 9, 10):
            for start in ("•", " - ", "\u00a0•", "*"):
                add(separator.join([start + "ship"] * count + ["sea"] * (10 - count)), True,
                    max_bullet_lines_ratio=0.9 if count < 10 else 0.95)
        for count in (2, 3, 4):
            add(separator.join(["ship... \t"] * count + ["sea"] * (10 - count)), True,
                max_ellipsis_lines_ratio=0.3)
    for count in (79, 80, 81):
        add("ship " * count + "12 " * (100 - count), min_stop_words=0)
    for words in ("the", "The Be", "the the the", "the be", "to of", "with, that", "of.the", "die der"):
        add("ship " * 60 + words)
        add("ship " * 60 + words, stop_words=["die", "der", "die", "of"])
    for text in texts(draw, 45, False):
        mode = draw.choice(list(WORDS))
        cases.add_measured(text, mode, draw, 3,
                           quality_measures(text, WORDS[mode](text), QUALITY["stop_words"]))
    return cases


def repetition_cases(draw):
    cases = Cases(repetition, REPETITION_OFF)
    for text in EMPTY:
        cases.add(text, "tokens")
        cases.add(text, "whitespace", top_n_grams=[999] * 3)
    for text in ("ab c ab c d e f g h a bc a b cd e f g h", "a b c d e " * 2, "a b c d e " * 3 + "f",
                 "ab cd e f g abcd e f g h i j ab c d e f g", "x " * 11, "1 2 3 4 5 6 7 8 9 10 " * 2):
        for n in range(6):
            cases.add(text, "whitespace", True, dup_n_grams=[999] * n + [0] + [999] * (5 - n))
    for text in texts(draw, 90, True):
        mode = draw.choice(list(WORDS))
        rules = list(repetition_measures(text, WORDS[mode](text)))
        cases.add_measured(text, mode, draw, 4, [rule for rule in rules if rule[3] > 0] or rules)
    return cases


def fineweb_cases(draw):
    cases = Cases(fineweb, FINEWEB_OFF)
    for text in EMPTY:
        cases.add(text, "tokens")
        cases.add(text, "whitespace", True, line_punct_thr=0.12, line_punct_exclude_zero=True)
    for end in sorted(TERMINAL) + list(":;,)\"'…”"):
        cases.add("the ship left the harbour" + end, "tokens", True, line_punct_thr=0.5)
    for length in (29, 30, 31):
        for letter in ("x", "é", "漢", "🙂", "\u0301"):
            cases.add((letter * length + "\n") * 2 + "y" * 40, "whitespace", True, short_line_thr=0.6)
    for text in list(texts(draw, 50, True)) + list(texts(draw, 20, False)):
        mode = draw.choice(list(WORDS))
        rules = list(fineweb_measures(text, WORDS[mode](text), 30)) if text.strip() else []
        cases.add_measured(text, mode, draw, 4, rules)
    return cases


PHRASES = ["Read our Terms of Use now.", "The PRIVACY policy applies here.", "This site uses cooKies a lot.",
           "This site uses coo\u212aies a lot.", "We use of cookies here.", "Please enable JavaScript now!",
           "It runs on javascrıpt or JavaScrİpt here.", "A function { return } here.", "Lorem ipsum dolor sit.",
           "lorem\u00a0ipsum dolor sit here.", "LOREM IPSUM dolor sit", "Known since 1805.[12]",
           "Known since 1805.[edit]", "Known since 1805 [citation needed].", "Known [] as well [a] here.[٣]",
           "[[1]] and [12 and [edit here.", "[1][2] x y.", "[1]", "Two words.", "Three short words.",
           "He said: \"go there\"", "and then 'so it was'", "and so on...", "and so on…", "is that so?!",
           "one. two. three. four.", "one! (two) three? \"four\" five.", "No. 5 is here. And 6.",
           "e.g. this one. Mr. Fox came.", "你好。再见。 三 四.", "a b c?\"", "w" * 1000 + " is long here.",
           "w" * 1001 + " is long here.", "é" * 1001 + " is long here.", "use   cookies here now.", ""]


def c4_cases(draw):
    cases = []

    def add(text, **settings):
        removed, left = c4(text, settings)
        cases.append(dict(text=text, settings=settings, removed=removed,
                          left=None if left == text else left))

    for text in EMPTY + PHRASES:
        add(text)
        add(text, min_num_sentences=0)
        add("\t" + text + " \n", min_num_sentences=0, min_words_per_line=0, filter_no_terminal_punct=False)
    for key, value in C4.items():
        for text in PHRASES:
            if len(text) < 200:
                add(text, **{"min_num_sentences": 0, key: not value if isinstance(value, bool) else 2})
    for _ in range(160):
        lines = [draw.choice(LANGUAGES + LANGUAGES[:5] + PHRASES[:30]) for _ in range(draw.choice([2, 5, 9]))]
        separator = draw.choice(BREAKS)
        add(separator.join(lines), min_num_sentences=draw.choice([0, 3, 5, 5, 8]))
    return cases


NOISE = ["3 likes", "1.2K shares", "- 1,024M followers!", "1k\tviews", "1\u212a likes", "\u0663 LIKES", "3 l\u0130kes",
         "3likes", "3 likes each", "x 3 likes", "_3 likes", "3k k likes", "1..2,,3 views ...", "\u00b2 likes", "12", "1 2",
         "\u0661\u0662", "\u00b2\u2460\U0001f100", "\u00bd", "MENU AND SEARCH", "MENU and", "Menu AND", "ÀÉÎ õü", "ÀÉÎ õ",
         "\u2160\u24b6 ab", "\u01c5\u01c5 \u01c5", "\u02b0\u1d43 ab", "3 items in cart", "items in cart", "ITEMS IN CART",
         "two\u2003items in cart items in cart", "item\u017f \u0130n cart here", "items\u00a0in cart here",
         "a b c d e f g items in cart", "a b c d e f g h items in cart", "The story goes on. Read more...", "Read more...",
         "Read more!!!", "read more...", "And Read more... here", "Readmore... x", "so read more…!?", "\u212aread more...",
         "x\u2003read more漢字仮", "one Read moreRead more...", "Sign-in", "Sign-in here", "SIGN-IN  now please",
         "\u017f\u0131gn-in x", "Sign-in\u00a0 a b", "please Sign-in now", "Sign-inside story", "one", " ", "\t", "", "", "",
         "\u0301 \u0301", ". , !", "a b", "  a b  ", "\u2028 x y"]


def refinedweb_cases(draw):
    cases = []

    def add(text, **settings):
        removed, left = refinedweb(text, settings)
        cases.append(dict(text=text, settings=settings, removed=removed, left=None if left == text else left))

    for text in EMPTY + NOISE:
        add(text)
        add("a story begins here\n" + text + "\nand ends there", max_removed_ratio=1)
        add("\n " + text + "\n", max_removed_ratio=1)
    options = dict(max_uppercase_ratio=[0, 0.25, 1], max_numeric_ratio=[0.25, 1], remove_counters=[False],
                   min_words_per_line=[0, 1, 3], remove_phrases=[False], max_words_of_phrase_lines=[2, 3, 9])
    for key, values in options.items():
        for value in values:
            for _ in range(9):
                add("\n".join(draw.choice(NOISE + LANGUAGES[:2]) for _ in range(6)), max_removed_ratio=1, **{key: value})
    for _ in range(150):
        words = LANGUAGES if draw.random() < 0.2 else LANGUAGES[:6]
        lines = [draw.choice(NOISE if draw.random() < 0.2 else words) for _ in range(draw.choice([3, 5, 12]))]
        separator = draw.choice(BREAKS) if draw.random() < 0.2 else "\n"
        add(separator.join(lines), **draw.choice([{}, {}, dict(max_removed_ratio=0.2), dict(max_removed_ratio=1)]))
    for removed in (4, 5, 6):  # of 100 words
        add("\n".join(["word " * (100 - removed)] + ["one"] * removed))
    return cases


def paragraph_cases(draw):
    cases = []
    for text in EMPTY:
        cases.append([text, {}, c4_paragraphs(text, {})])
    for letter in ("x", "é", "漢", "🙂", " "):
        for lengths in ([200] * 3, [199, 200, 200], [200, 200], [1, 200, 3, 201, 0, 200], [199] * 9):
            for end in ("", "\n", "\r\n"):
                parts = [[part, count] for length in lengths for part, count in (["\n", 1], [letter, length])][1:]
                text = "".join(part * count for part, count in parts) + end
                cases.append([parts + [[end, 1]], {}, c4_paragraphs(text, {})])
    for _ in range(280):
        text = draw.choice(BREAKS).join(draw.choice(LANGUAGES[:6] + PHRASES[:9]) for _ in range(draw.choice([1, 2, 4])))
        longest = max(map(len, text.split("\n")))
        settings = dict(min_paragraphs=draw.choice([0, 1, 2, 3, 5]),
                        min_paragraph_len=draw.choice([0, 1, longest - 1, longest, longest + 1, 60]))
        cases.append([text, settings, c4_paragraphs(text, settings)])
    return cases


BAD_WORDS = ["vilain", "two words", "x.y", "-dash", "dash-", "漢字", "õli", "é", "_", "a_b", "οδος", "i\u0307x", "🖕", "b 2",
             "Upper", "ab", "abc"]


def bad_word_cases(draw):
    cases = []
    around = ["", " ", ".", "-", "_", "x", "é", "漢", "\u0301", "\n", "\u00a0", "5", "🙂"]
    for entry in BAD_WORDS:
        for form in (entry, entry.upper(), entry.title()):
            for _ in range(6):
                text = draw.choice(["", "so "]) + draw.choice(around) + form + draw.choice(around) + draw.choice(["", "it is"])
                cases.append([text, c4_bad_words(text, BAD_WORDS, False), c4_bad_words(text, BAD_WORDS, True)])
    for text in EMPTY + LANGUAGES:
        cases.append([text, c4_bad_words(text, BAD_WORDS, False), c4_bad_words(text, BAD_WORDS, True)])
    return cases


def word_cases(draw):
    cases = []
    alphabet = list("abAB09.,:;-–—~/'’\"()<>=+*^%&$€°²sS#@_!?…|") + [
        "é", "e\u0301", "漢", "。", "👍", "🏽", "→", "US$", "km", "..", "--", "://", ".com", "’s", "м", "ع"]
    texts_ = LANGUAGES + [" ".join(ODD)] + EMPTY
    texts_ += ["a……", "……", "a………", "…………b", "a--b", "a---b", "a----b", "a——b", "a———b", "a–b"]
    for host in ("a.example", "a.b.example", "a_b.example", "_a.example", "a-.example", "x.Example", "x.e",
                 "é.example", "例.例え", "a..example", "x." + "y" * 63, "x." + "y" * 64, "z" * 64 + ".example",
                 "z" * 65 + ".example", "u@a.example", "@a.example", "u:p@a.example", "u@v@a.example",
                 "ab://a.example", "a://a.example", "ab:/a.example", "a+b.c-d://a.example"):
        texts_ += [host + end for end in ("/a-b", ":5/a-b", ":55/a-b", ":55555/a-b", ":555555/a-b", "?a-b", "#a-b",
                                          ":a-b", "", "-b/a-b")]
    for _ in range(1500):
        texts_.append("".join(draw.choice(alphabet) for _ in range(draw.choice([1, 2, 3, 4, 6, 9]))))
    for unit in UNITS + CURRENCY:
        texts_.append("5" + unit + " " + unit + "5 x" + unit)
    for text in texts_:
        cases.append([text, tokens(text)])
    return cases


def write(name, head, items):
    """A JSON file with a line for each item."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    lines = [json.dumps(item, separators=(",", ":")) for item in items]
    with open(path, "w", encoding="utf-8") as file:
        file.write('{"off":%s,"items":[\n%s\n]}\n' % (json.dumps(head), ",\n".join(lines)))
    return os.path.getsize(path)


def write_checks(name, cases):
    found = {}
    for checks in cases.checks.values():
        for check in checks:
            found[check[3]] = found.get(check[3], 0) + 1
    size = write(name, cases.off, [[compact(text), checks] for text, checks in cases.checks.items()])
    print(name, sum(found.values()), "checks,", size, "bytes,", found)


if __name__ == "__main__":
    print("words.json", write("words.json", {}, word_cases(random.Random(1))), "bytes")
    write_checks("gopher_quality.json", quality_cases(random.Random(2)))
    write_checks("gopher_repetition.json", repetition_cases(random.Random(3)))
    write_checks("fineweb_quality.json", fineweb_cases(random.Random(4)))
    print("c4.json", write("c4.json", {}, c4_cases(random.Random(5))), "bytes")
    print("refinedweb_lines.json", write("refinedweb_lines.json", {}, refinedweb_cases(random.Random(6))), "bytes")
    print("c4_paragraphs.json", write("c4_paragraphs.json", {},
                                      [[compact(text) if isinstance(text, str) else text, *rest] for text, *rest in paragraph_cases(random.Random(7))]))
    print("c4_bad_words.json", write("c4_bad_words.json", BAD_WORDS, bad_word_cases(random.Random(8))), "bytes")
