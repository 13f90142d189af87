#!/usr/bin/env python3
"""Writes personal_data_cases.json: texts, and which bytes of them are personal data.

The rules of docs/curation.md, restated with regular expressions, ipaddress and the published
definitions of the check digits. A case that is built to be found or to be missed is asserted to be.
"""
import datetime
import ipaddress
import json
import os
import random
import re

SEP = "[ .\\-\u00a0\u202f\u2011]"
BEGIN = r"(?<![A-Za-z0-9_+])(?<![0-9][.,/])(?<![A-Za-z0-9_]-)"
END = r"(?![A-Za-z0-9_])(?![.,/][0-9])(?!-[A-Za-z0-9_])"

# ---- e-mail
LABEL = "(?!-)[A-Za-z0-9\\-\u0080-\U0010ffff]++(?<!-)"
FILES = "png|jpg|jpeg|gif|svg|webp|html|php|js|css|pdf"
DOMAIN = re.compile(
    rf"(?:{LABEL}\.)+(?!(?i:{FILES})(?![A-Za-z]))(?:xn--[A-Za-z0-9-]*+|[A-Za-z]{{2,}}+)(?![A-Za-z0-9_])")


def email(text, at):
    run = re.search(r"[A-Za-z0-9._%+-]*\Z", text[:at]).group()
    if ".." in run:
        run = "." + run.rsplit("..", 1)[1]
    local = re.sub(r"\A[.%+-]+", "", run)
    domain = DOMAIN.match(text, at + 1)
    if not local or local.endswith(".") or len(run) > 64 or not domain:
        return None
    return at - len(local), domain.end()


# ---- IP
SPECIAL = [ipaddress.ip_network(n) for n in (
    "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 "
    "192.0.2.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 "
    "240.0.0.0/4 2001::/23 2001:db8::/32 2002::/16 3fff::/20").split()]
QUAD = r"[0-9]{1,3}+(?:\.[0-9]{1,3}+){3}(?![0-9])"
IPV4 = re.compile(r"(?<![A-Za-z0-9_.~^])(?<![A-Za-z_\u0080-\U0010ffff][-+])(?<![=<>~!^]=)(" + QUAD +
                  r")(?![A-Za-z0-9_])(?![.+~][A-Za-z0-9])(?:(?!-[A-Za-z0-9])|(?=-(" + QUAD + ")))")
VERSION = re.compile(r"(?<![A-Za-z\u0080-\U0010ffff])(?i:v|ver|vers|version|versie|versione|rel|release|"
                     r"rev|revision|build|chapter|section|sec|table|fig)[ .:=\"'(]{0,3}\Z")


def address_of(text):
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def is_global(address):
    if address.version == 6 and address not in ipaddress.ip_network("2000::/3"):
        return False
    return not any(address in network for network in SPECIAL if network.version == address.version)


def ip(text, i):
    m = IPV4.match(text, i)
    if m and (not m.group(2) or address_of(m.group(2))):
        address = address_of(m.group(1))
        if address and is_global(address) and not VERSION.search(text[:i]):
            return i, m.end(1)
    m = re.compile(r"(?<![A-Za-z0-9_:.])[23][0-9A-Fa-f]{3}:[0-9A-Fa-f:]*").match(text, i)
    if not m:
        return None
    found = m.group()
    if found.endswith(":") and not found.endswith("::"):
        found = found[:-1]
    if re.compile(r"[A-Za-z0-9_]|\.[0-9]").match(text, i + len(found)):
        return None
    address = address_of(found)
    if not address or address.version != 6 or not is_global(address) or len(found.strip(":").split(":")) < 2:
        return None
    return i, i + len(found)


# ---- IBAN
LENGTHS = dict((word[:2], int(word[2:])) for word in (
    "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 DK18 DO28 "
    "EE20 EG29 ES24 FI18 FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HN28 HR21 HU28 IE22 IL23 IQ23 IS26 "
    "IT27 JO30 KW30 KZ20 LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 MN20 MR27 MT31 MU30 NI28 "
    "NL18 NO15 OM23 PK24 PL28 PS29 PT25 QA29 RO24 RS22 RU33 SA24 SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25 "
    "SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20 YE30").split())


def mod97(text):
    return int("".join(str(int(c, 36)) for c in text)) % 97


def iban(text, i):
    start = i - (3 if text[i - 1:i] == " " else 2)
    if start < 0 or text[start:start + 2] not in LENGTHS:
        return None
    more = LENGTHS[text[start:start + 2]] - 4
    m = re.compile(BEGIN + r"[A-Z]{2} ?[0-9]{2}(?:" + SEP.replace(".", "") + "?[0-9A-Z]){%d}" % more + END).match(text, start)
    if not m:
        return None
    plain = re.sub("[^0-9A-Z]", "", m.group())
    if mod97(plain[4:] + plain[:4]) != 1 or not 2 <= int(plain[2:4]) <= 98:
        return None
    return start, m.end()


# ---- cards
def luhn(digits):
    return sum(sum(divmod(int(c) * (1 + k % 2), 10)) for k, c in enumerate(reversed(digits))) % 10 == 0


ISSUERS = [  # first digits from, to; lengths
    ("4000", "4999", (13, 16, 19)), ("5100", "5599", (16,)), ("2221", "2720", (16,)),
    ("6011", "6011", (16, 19)), ("6440", "6599", (16, 19)), ("3528", "3589", (16,)),
    ("6200", "6299", (16, 19)), ("6759", "6763", (16,)), ("3400", "3499", (15,)), ("3700", "3799", (15,)),
    ("3000", "3059", (14,)), ("3600", "3699", (14,)), ("3800", "3999", (14,))]
CARD_GROUPS = [(13,), (14,), (15,), (16,), (19,), (4, 4, 4, 4), (4, 6, 5), (4, 6, 4), (4, 4, 4, 4, 3), (8, 8), (4, 4, 5, 3)]
CARDS = [re.compile(BEGIN + SEP.join("[0-9]{%d}" % n for n in groups) + END) for groups in CARD_GROUPS]


def is_card(digits):
    return luhn(digits) and any(low <= digits[:4] <= high and len(digits) in lengths for low, high, lengths in ISSUERS)


def card(text, i):
    for pattern in CARDS:
        m = pattern.match(text, i)
        if m and is_card(re.sub("[^0-9]", "", m.group())):
            return m.span()
    return None


# ---- national numbers
def is_date(day, month):
    try:
        datetime.date(2000, month, day)
        return True
    except ValueError:
        return False


def nl(n):
    return int(n) > 0 and (sum((9 - i) * int(n[i]) for i in range(8)) - int(n[8])) % 11 == 0


def fi(n):
    return (is_date(int(n[:2]), int(n[2:4])) and 2 <= int(n[7:10]) <= 899
            and "0123456789ABCDEFHJKLMNPRSTUVWXY"[int(n[:6] + n[7:10]) % 31] == n[10])


def se(n):
    day = int(n[-6:-4])
    return (len(n) == 10 or n[:2] in ("18", "19", "20")) and luhn(n[-10:]) and is_date(day - 60 if day > 60 else day, int(n[-8:-6]))


def be(n):
    return is_date(int(n[4:6]), int(n[2:4])) and int(n[9:]) in (97 - int(n[:9]) % 97, 97 - int("2" + n[:9]) % 97)


def fr(n):
    month = int(n[3:5])
    if n[0] not in "123478" or not (1 <= month <= 12 or 20 <= month <= 42 or 50 <= month):
        return False
    n = n[:5] + {"2A": "19", "2B": "18"}.get(n[5:7], n[5:7]) + n[7:]
    return n.isdigit() and 97 - int(n[:13]) % 97 == int(n[13:])


def pl(n):
    total = sum(w * int(c) for w, c in zip((1, 3, 7, 9, 1, 3, 7, 9, 1, 3), n))
    return is_date(int(n[4:6]), int(n[2:4]) % 20) and (10 - total) % 10 == int(n[10])


def es(n):
    return "TRWAGMYFPDXBNJZSQVHLCKE"[int(n[:8].translate(str.maketrans("XYZ", "012"))) % 23] == n[8]


def no(n):
    def rest(weights):
        return -sum(w * int(c) for w, c in zip(weights, n)) % 11
    day = int(n[:2])
    return (is_date(day - 40 if day > 40 else day, int(n[2:4])) and rest((3, 7, 6, 1, 8, 9, 4, 5, 2)) == int(n[9])
            and rest((5, 4, 3, 2, 7, 6, 5, 4, 3, 2)) == int(n[10]))


D = "[0-9]"
NATIONAL = [  # check, patterns, words
    (nl, [D + "{9}", f"{D}{{4}}{SEP}{D}{{2}}{SEP}{D}{{3}}", f"{D}{{3}}{SEP}{D}{{3}}{SEP}{D}{{3}}"],
     "bsn|burgerservicenummer|sofinummer|sofi-nummer|citizen service number"),
    (fi, [D + "{6}[-+A-FU-Y]" + D + "{3}[0-9A-Z]"], ""),
    (se, [D + "{6}[-+]" + D + "{4}", D + "{8}[-+]" + D + "{4}", D + "{10}", D + "{12}"],
     "personnummer|personnr|pnr|samordningsnummer|personal identity number|personal number"),
    (be, [D + "{11}", SEP.join([D + D, D + D, D + D, D + D + D, D + D]), SEP.join([D + "{6}", D + D + D, D + D])], ""),
    (fr, [D + "{6}[0-9AB]" + D + "{8}", SEP.join([D, D + D, D + D, D + "[0-9AB]", D * 3, D * 3, D * 2]),
          D + "{6}[0-9AB]" + D + "{6}" + SEP + D * 2], ""),
    (pl, [D + "{11}"], "pesel"),
    (es, [D + "{8}-?[A-Z]", D * 2 + SEP + D * 3 + SEP + D * 3 + "-[A-Z]", "[XYZ]" + D + "{7}-?[A-Z]", "[XYZ]-" + D + "{7}-[A-Z]"], ""),
    (no, [D + "{11}", D + "{6}" + SEP + D + "{5}"], ""),
]


def has_words(text, begin, end, before, after, words):
    data = text.encode()
    a, b = len(text[:begin].encode()), len(text[:end].encode())
    pattern = re.compile(rb"(?<![A-Za-z\x80-\xff])(?i:" + words.encode() + rb")(?![A-Za-z\x80-\xff])")
    # Every place, also those where an alternative hides behind a shorter one.
    return any(m and (a - before <= m.start() and m.end() <= a or b <= m.start() and m.end() <= b + after)
               for at in range(len(data)) if (m := pattern.match(data, at)))


def national(text, i):
    start = i
    if text[i - 1:i] and text[i - 1] in "XYZ":
        start = i - 1
    elif text[i - 1:i] == "-" and text[i - 2:i - 1] and text[i - 2] in "XYZ":
        start = i - 2
    found = []
    for check, patterns, words in NATIONAL:
        for pattern in patterns:
            m = re.compile(BEGIN + pattern + END).match(text, start)
            if not m:
                continue
            plain = re.sub("[^0-9A-Z]", "", m.group()) if check is not fi else m.group()
            if check(plain) and (not words or has_words(text, *m.span(), 48, 24, words)):
                found.append(m.span())
    return max(found, key=lambda span: span[1], default=None)


# ---- telephones: country code, digits behind it; first digits and digits within the country
PLANS = [
    ("1", 10, 10, "[2-9]", 10, 10), ("30", 10, 10, "[26]", 10, 10), ("31", 9, 9, "0[1-9]", 10, 10),
    ("32", 8, 9, "0[1-9]", 9, 10), ("33", 9, 9, "0[1-9]", 10, 10), ("34", 9, 9, "[6-9]", 9, 9),
    ("351", 9, 9, "[29]", 9, 9), ("352", 6, 9, None, 0, 0), ("353", 7, 9, "0[1-9]", 8, 10),
    ("354", 7, 7, None, 0, 0), ("356", 8, 8, None, 0, 0), ("357", 8, 8, None, 0, 0),
    ("358", 6, 10, "0[1-9]", 7, 11), ("359", 8, 9, "0[1-9]", 9, 10), ("36", 8, 9, None, 0, 0),
    ("370", 8, 8, None, 0, 0), ("371", 8, 8, None, 0, 0), ("372", 7, 8, None, 0, 0),
    ("380", 9, 9, "0[1-9]", 10, 10), ("381", 8, 9, "0[1-9]", 9, 10), ("382", 8, 8, None, 0, 0),
    ("385", 8, 9, "0[1-9]", 9, 10), ("386", 8, 8, "0[1-9]", 9, 9), ("387", 8, 8, "0[1-9]", 9, 9),
    ("389", 8, 8, "0[1-9]", 9, 9), ("39", 8, 11, "3", 9, 10), ("40", 9, 9, "0[1-9]", 10, 10),
    ("41", 9, 9, "0[1-9]", 10, 10), ("420", 9, 9, "[2-7]", 9, 9), ("421", 9, 9, "0[1-9]", 10, 10),
    ("43", 7, 12, "0[1-9]", 8, 12), ("44", 9, 10, "0[1-9]", 10, 11), ("45", 8, 8, "[2-9]", 8, 8),
    ("46", 7, 9, "0[1-9]", 8, 10), ("47", 8, 8, "[2-9]", 8, 8), ("48", 9, 9, "[2-9]", 9, 9),
    ("49", 7, 11, "0[1-9]", 8, 12), ("90", 10, 10, "0[1-9]", 11, 11)]
PHONE_WORDS = (
    "tel|telephone|telefon|telefoon|telefono|teléfono|telefone|téléphone|tél|phone|mobile|mobiel|mobil|móvil|"
    "portable|gsm|fax|tlf|tfn|puhelin|puh|matkapuhelin|mobiltelefon|telefonnummer|telefoonnummer|rufnummer|"
    "mobielnummer|mobilnummer|puhelinnumero|cellulare|whatsapp|phone number|faks")


def groups_of(text, i):
    """All prefixes of a number that end with a group: (end, digits)."""
    digits, ends, left_out = "", [], False
    separators = SEP[:-1] + "()/]"
    while len(digits) < 17:
        stop = "" if left_out else r"(?!\(0\))"
        if digits:
            m = re.compile(f"(?:{stop}{separators}){{0,2}}").match(text, i)
            i = m.end()
            m = re.compile(rf"\(0\){SEP}?").match(text, i)
            if m and not left_out:
                i, left_out = m.end(), True
        m = re.compile("[0-9]+").match(text, i)
        if not m:
            break
        digits, i = digits + m.group(), m.end()
        if len(digits) <= 17 and not re.compile("[A-Za-z0-9_]").match(text, i):
            ends.append((i, digits))
    return ends


def phone(text, i):
    plus = text[i - 1:i] == "+"
    if plus and re.search(r"[A-Za-z0-9+]\Z", text[:i - 1]):
        return None
    if not plus and re.search(r"(?:[A-Za-z0-9_+.,]|[0-9][-/ )])\Z", text[:i]):
        return None
    m = re.compile(rf"(?<![A-Za-z0-9_])\([2-9][0-9]{{2}}\){SEP}?[2-9][0-9]{{2}}{SEP}[0-9]{{4}}{END}").match(text, max(i - 1, 0))
    if m and i > 0:
        return m.span()
    ends = groups_of(text, i)
    found = []
    for end, digits in ends:
        for code, fewest, most, first, local_fewest, local_most in PLANS:
            zeros = "" if plus else "00"
            if plus or ends[-1][1].startswith("00"):
                if digits.startswith(zeros + code) and fewest <= len(digits) - len(zeros + code) <= most:
                    found.append(end)
            elif first and re.match(first, digits) and local_fewest <= len(digits) <= local_most:
                lengths = [len(d) for _, d in ends]
                dates = lengths[:3] in ([4, 6, 8], [2, 4, 8]) and len(digits) == 8
                if not dates:
                    found.append(end)
    if not found:
        return None
    begin = i - 1 if plus or text[i - 1:i] == "(" else i
    if not plus and not has_words(text, begin, max(found), 24, 0, PHONE_WORDS):
        return None
    return begin, max(found)


# ---- all
FINDERS = [("ip", ip), ("iban", iban), ("card", card), ("national", national), ("phone", phone)]


def find(text):
    spans, i = [], 0
    while i < len(text):
        best = None
        if text[i] == "@":
            found = email(text, i)
            best = found and (*found, "email")
        elif re.match("[0-9]", text[i]):
            for name, finder in FINDERS:
                found = finder(text, i)
                if found and (not best or found[1] - found[0] > best[1] - best[0]):
                    best = (*found, name)
        if best:
            while spans and spans[-1][1] > best[0]:
                other = spans.pop()
                name = other[2] if other[1] - other[0] > best[1] - best[0] else best[2]
                best = (min(other[0], best[0]), max(other[1], best[1]), name)
            spans.append(best)
            i = best[1]
        elif re.match("[0-9]", text[i]):
            i = re.compile("[0-9]+").match(text, i).end()
        else:
            i += 1
    return [(len(text[:a].encode()), len(text[:b].encode()), name) for a, b, name in spans]


# ---- cases
random.seed(41)
cases = []
FRAMES = ["{}", "{}.", "({})", "a: {}, b", "see {} now", "\"{}\"", "«{}»", "x\n{}\ny", "对{}。", "één {} twee"]


def case(group, text, expected=None):
    """expected: the masked strings, where the case is built for them."""
    found = find(text)
    strings = [text.encode()[a:b].decode() for a, b, _ in found]
    assert expected is None or strings == expected, (group, text, expected, strings)
    cases.append({"group": group, "text": text, "spans": [list(span) for span in found]})


def digits(n):
    return "".join(random.choice("0123456789") for _ in range(n))


def framed(text):
    return random.choice(FRAMES).format(text)


def email_cases():
    for local in ("a", "jan.de.vries", "x_y", "o-n+tag", "1a", "A.B.C", "%a", "a%b", "_x"):
        for domain in ("b.nl", "mail.example.com", "x-y.co.uk", "müller.de", "xn--mller-kva.de", "1.fi", "a.museum"):
            case("email", framed(f"{local}@{domain}"), [f"{local.lstrip('%')}@{domain}"])
    for text in ("@", "a@", "@b.nl", "a@b", "a@b.c", "a@.nl", "a.@b.nl", "a@-b.nl", "a@b-.nl", "a@b..nl", "icon@2x.png",
                 "foo@1.2.3", "a@b.n1", "a@b.nl1", "a@b.nl_", "a b@ c.nl", "a@ b.nl", "pkg@1.0.js", "@@@@", "a@b.c.d.e"):
        case("email", text, [])
        case("email", framed(text))
    for text, found in (("..a@b.nl", "a@b.nl"), ("a..b@c.nl", "b@c.nl"), ("mailto:a@b.nl?x", "a@b.nl"), ("<a@b.nl>", "a@b.nl"),
                        ("a@b.nl.", "a@b.nl"), ("a@b.nl-", "a@b.nl"), ("a@b.nl--c", "a@b.nl"), ("联系a@b.com联系", "a@b.com"),
                        ("a@b.nl,c", "a@b.nl"), ("x=a@b.nl&c", "a@b.nl"), ("a@b.c.nl", "a@b.c.nl"), ("a@b.nl.5", "a@b.nl"),
                        ("-a@b.nl", "a@b.nl"), ("'a@b.nl'", "a@b.nl"), ("@user@social.example", "user@social.example"),
                        ("a@b.png.nl", "a@b.png.nl"), ("a@b.nl.png", "a@b.nl"), ("é.a@b.nl", "a@b.nl"), ("a" * 64 + "@b.nl", "a" * 64 + "@b.nl")):
        case("email", text, [found])
    case("email", "a" * 65 + "@b.nl", [])
    case("email", "a@b.nl;c@d.fi c@d@e.nl", ["a@b.nl", "c@d.fi", "d@e.nl"])
    alphabet = "ab1.@-_ +é%"
    while len(cases) < 330:
        case("email", "".join(random.choice(alphabet) for _ in range(random.randint(4, 24))) + random.choice(["", ".nl", "@x.fi", "@a.b"]))


def ip_cases():
    for _ in range(120):
        quad = ".".join(str(random.choice([random.randrange(256), random.randrange(20), 8])) for _ in range(4))
        case("ip", framed(quad) if random.random() < 0.7 else random.choice(["v", "version ", "v. ", "rev:", "http://", "==", "=", "-", "a-", "1-"]) + quad
             + random.choice(["", ":443", "/24", "-1", "-8.8.8.8", ".5", ".a", ". Then", "a", "+b", "~rc1", "%"]))
    for text in ("10.20.30.401", "10.20.30.40", "192.168.0.1", "127.0.0.1", "100.64.1.1", "8.8.8", "8.8.8.8.8", "1.2.3.4-5", "v1.2.3.4",
                 "Version 1.2.3.4", "08.8.8.8", "8.8.8.08", "256.8.8.8", "8.8.8.256", "pip==1.2.3.4", "~=1.2.3.4", "224.0.0.1", "255.255.255.255",
                 "lib-1.2.3.4", "1.2.3.4.tar", "8.8..8.8", "0.0.0.0", "203.0.113.9", "8,8.8.8", "a8.8.8.8", "8.8.8.8a", "8.8.8.8_", "198.19.0.1",
                 "2001:db8::1", "2001::1", "2002:808:808::1", "fe80::1", "::1", "3fff:0:1::1", "2a00:::1", "2a00::1::2", "2a00:1:2:3:4:5:6",
                 "2a00:1:2:3:4:5:6:7:8", "x2a00::1", "2a00::1g", "12345::1", "2a00::", "2023:10:11", "2a00::12345", "std::2000::x", "2a:b::1:2:3"):
        case("ip", text, [])
        case("ip", framed(text))
    for text in ("8.8.8.8", "1.1.1.1", "172.32.0.1", "100.128.0.0", "223.255.255.255", "2a00::1", "2001:4860:4860::8888", "2a02:a210:1:2:3:4:5:6",
                 "2607:f8b0:4005:80a::200e", "2A00:ABCD::", "2001:200::1", "3ffe:1::1", "2a00:1:2:3:4:5:6::", "3fff:1000::1"):
        for frame in ("{}", "{}.", "[{}]:80", "{}/32", "ip={}", "({})", "{},", "<{}>", "{} {}", "\t{}\n", "{}: x")[:10 + (text[-1] != ":")]:
            case("ip", frame.format(text, text), [text] * frame.count("{}"))
    case("ip", "8.8.8.8-8.8.8.10", ["8.8.8.8", "8.8.8.10"])


def grouped(text, size, separator):
    return separator.join(text[k:k + size] for k in range(0, len(text), size))


def iban_cases():
    for country, length in LENGTHS.items():
        bban = "".join(random.choice("0123456789" + ("ABCXYZ" if random.random() < 0.4 else "")) for _ in range(length - 4))
        check = "%02d" % (98 - mod97(bban + country + "00"))
        number = country + check + bban
        for text in (number, grouped(number, 4, random.choice(" -\u00a0\u202f")), country + " " + check + " " + grouped(bban, 4, " ")):
            case("iban", framed(text), [text])
        k = random.randrange(4, length)
        wrong = number[:k] + str((int(number[k], 36) + 1) % 10) + number[k + 1:]
        case("iban", framed(wrong), [])
    good = "NL91ABNA0417164300"
    for text in ("NL91ABNA041716430", "NL91ABNA04171643001", "XNL91ABNA0417164300", "nl91abna0417164300", "NL91ABNA0417164300a", "NL91 ABNA  0417164300",
                 "NL91.ABNA.0417.1643.00", "ZZ91ABNA0417164300", "NL  91ABNA0417164300", "NL9 1ABNA0417164300", "N L91ABNA0417164300", "_NL91ABNA0417164300",
                 "NL91ABNA0417164300-1", "0-NL91ABNA0417164300"):
        case("iban", text, [])
    for text in (good, "NL91 ABNA 0417 1643 00", "NL91 ABNA 0417164300", "NL 91 ABNA 0417 1643 00", "NL91-ABNA-0417-1643-00", "GB29 NWBK 6016 1331 9268 19",
                 "DE89370400440532013000", "NO9386011117947"):
        for frame in ("{}", "IBAN {}", "IBAN:{}", "{} BIC", "{}.", "{}, {}", "rek.nr. {}", "{}/"):
            case("iban", frame.format(text, text), [text] * frame.count("{}"))


def luhn_number(prefix, length):
    number = prefix + digits(length - 1 - len(prefix))
    return next(number + d for d in "0123456789" if luhn(number + d))


def card_cases():
    for low, high, lengths in ISSUERS:
        for length in lengths:
            for _ in range(4):
                number = luhn_number(str(random.randint(int(low), int(high))), length)
                layouts = [g for g in CARD_GROUPS if sum(g) == length]
                separator = random.choice([" ", "-", "\u00a0"])
                parts, rest = [], number
                for n in random.choice(layouts):
                    parts.append(rest[:n])
                    rest = rest[n:]
                text = separator.join(parts)
                case("card", framed(text), [text])
                wrong = text[:-1] + str((int(text[-1]) + random.randint(1, 9)) % 10)
                case("card", framed(wrong), [])
    for text in ("4111111111111112", "411111111111111", "41111111111111111", "3.4111111111111111", "4111111111111111.5", "x4111111111111111", "4111111111111111x",
                 "4111 1111 1111  1111", "411 11111 1111 1111", "9111111111111111", "550e8400-e29b-41d4-a716-446655440000", "4111111111111111-2", "a-4111111111111111",
                 "_4111111111111111", "+4111111111111111", "4111,4111111111111111", "0000000000000000", "3.14159265358979"):
        case("card", text, [])
    for frame in ("{}", "id={}", "card:{}", "#{}", "{}!", "2023 {}", "{} 12/25", "*{}*", "{}\u20ac"):
        case("card", frame.format("4111111111111111"), ["4111111111111111"])
        case("card", frame.format("3782-822463-10005"), ["3782-822463-10005"])
    for _ in range(150):
        case("card", framed(random.choice(["4", "51", "34", "36", "60", ""]) + digits(random.randint(10, 18))))


def national_cases():
    def made(form, check, tries=100000):
        for _ in range(tries):
            text = "".join(random.choice("0123456789") if c == "9" else c for c in form)
            if check(text):
                return text
        raise AssertionError(form)

    def date(order, year=""):
        day, month = "%02d" % random.randint(1, 28), "%02d" % random.randint(1, 12)
        return {"dmy": day + month + digits(2), "ymd": digits(2) + month + day}[order]

    for _ in range(14):
        n = made("999999999", nl)
        for text in (n, f"{n[:4]}.{n[4:6]}.{n[6:]}", f"{n[:3]} {n[3:6]} {n[6:]}", f"{n[:4]} {n[4:6]} {n[6:]}"):
            case("national", f"BSN {text}", [text])
            case("national", framed(text), [])
        case("national", f"Burgerservicenummer: {n}.", [n])
        case("national", f"{n} (bsn)", [n])
        case("national", f"bsn {n[:8]}{(int(n[8]) + random.randint(1, 9)) % 10}", [])
        case("national", f"bsn{'.' * 46}{n}")
        case("national", f"xbsn {n} bsns {n}", [])
    for _ in range(30):
        sign = random.choice("+-ABCDEFUVWXY")
        d, individual = date("dmy"), "%03d" % random.randint(2, 899)
        good = d + sign + individual + "0123456789ABCDEFHJKLMNPRSTUVWXY"[int(d + individual) % 31]
        case("national", framed(good), [good])
        case("national", framed(good[:-1] + random.choice("0123456789ABCDEFGHJKLMN")))
    for text in ("131052-308U", "131052-308T", "311352-308U", "131052-001X", "131052-950A", "1310523-08T", "131052-308TX", "x131052-308T", "131052_308T"):
        case("national", text)
    for _ in range(16):
        n = made(date("ymd") + "9999", se)
        for text in (n, n[:6] + "-" + n[6:], "19" + n, "20" + n[:6] + "-" + n[6:], n[:6] + "+" + n[6:]):
            case("national", f"Personnummer {text}", [text])
            case("national", framed(text))
        case("national", f"pnr {n[:9]}{(int(n[9]) + 1) % 10}", [])
        case("national", f"pnr 17{n}", [])
    for _ in range(16):
        n = made(date("ymd") + "99999", be)
        for text in (n, f"{n[:2]}.{n[2:4]}.{n[4:6]}-{n[6:9]}.{n[9:]}", f"{n[:6]} {n[6:9]} {n[9:]}"):
            case("national", framed(text), [text])
        case("national", framed(f"{n[:2]}.{n[2:4]}.{n[4:6]}-{n[6:9]}.{(int(n[9:]) + 1) % 100:02}"), [])
        n = made(date("ymd") + "99999", pl)
        case("national", f"PESEL: {n}", [n])
        case("national", framed(n))
        case("national", f"pesel {n[:10]}{(int(n[10]) + 1) % 10}")
        n = made(date("dmy") + "99999", no)
        case("national", framed(n), [n])
        case("national", framed(n[:6] + " " + n[6:]), [n[:6] + " " + n[6:]])
        case("national", framed(n[:10] + str((int(n[10]) + 1) % 10)))
        n = digits(8)
        letter = "TRWAGMYFPDXBNJZSQVHLCKE"[int(n) % 23]
        for text in (n + letter, n + "-" + letter, f"{n[:2]}.{n[2:5]}.{n[5:]}-{letter}"):
            case("national", framed(text), [text])
        case("national", framed(n + random.choice("IOU")), [])
        case("national", framed(n + letter.lower()), [])
        first = random.randrange(3)
        letter = "TRWAGMYFPDXBNJZSQVHLCKE"[int(str(first) + n[1:]) % 23]
        for text in ("XYZ"[first] + n[1:] + letter, "XYZ"[first] + "-" + n[1:] + "-" + letter):
            case("national", framed(text), [text])
            case("national", "A" + text)
        sex, middle = random.choice("12"), digits(2) + "%02d" % random.randint(1, 12)
        for department in ("%02d" % random.randint(1, 95), "2A", "2B"):
            body = sex + middle + department + digits(6)
            plain = body.replace("2A", "19").replace("2B", "18") if department[1] in "AB" else body
            key = "%02d" % (97 - int(plain) % 97)
            if department[1] in "AB" and body.count(department) > 1:
                continue
            text = body + key
            spaced = f"{body[0]} {body[1:3]} {body[3:5]} {body[5:7]} {body[7:10]} {body[10:]} {key}"
            if fr(text):
                case("national", framed(text), [text])
                case("national", framed(spaced), [spaced])
                case("national", framed(text[:-2] + "%02d" % ((int(key) + 1) % 97)))


def phone_cases():
    for code, fewest, most, first, local_fewest, local_most in PLANS:
        for _ in range(2):
            n = random.choice("23456789") + digits(random.randint(fewest, most) - 1)
            for text in (f"+{code}{n}", f"+{code} {n}", f"+{code} (0){n}", f"+{code}-{n[:2]}-{n[2:]}", f"+{code} {grouped(n, 3, ' ')}",
                         f"+{code} ({n[:2]}) {n[2:]}"):
                case("phone", framed(text))
            case("phone", f"Tel: 00{code} {n}", [f"00{code} {n}"])
            case("phone", f"00{code} {n}")
        if first:
            n = random.choice("23456789") + digits(local_most - 2)
            n = "0" + n if first.startswith("0") else re.sub(r"\D", "", first)[0] + n
            for text in (n, n[:3] + "-" + n[3:], f"({n[:3]}) {n[3:]}", grouped(n, 2, "."), n[:2] + " " + n[2:]):
                word = random.choice(PHONE_WORDS.split("|"))
                case("phone", f"{word} {text}")
                case("phone", f"{word.capitalize()}.: {text}, x")
                case("phone", framed(text))
    for text, found in (("tel. 020-1234567 of 06-12345678", ["020-1234567", "06-12345678"]), ("+31 6 12345678", ["+31 6 12345678"]),
                        ("+31 (0)6 1234 5678", ["+31 (0)6 1234 5678"]), ("(212) 555-0123", ["(212) 555-0123"]), ("(212)555-0123", ["(212)555-0123"]),
                        ("(112) 555-0123", []), ("(212) 155-0123", []), ("212-555-0123", []), ("phone 212-555-0123", ["212-555-0123"]),
                        ("+31 6 12345678 12 euro", ["+31 6 12345678"]), ("+999 12345678", []), ("x+31612345678", []), ("1+31612345678", []),
                        ("C++31612345678", []), ("+31612345678a", []), ("tel 2023-01-15", []), ("tel 15.01.2023", []), ("television 020-1234567", []),
                        ("+33 1 23 45 67 89", ["+33 1 23 45 67 89"]), ("TÉL 01 23 45 67 89", []), ("Tél. 01 23 45 67 89", ["01 23 45 67 89"]),
                        ("puh. 040 123 4567", ["040 123 4567"]), ("puh. 0401234", ["0401234"]), ("puh. 040123", []), ("0031 6 12345678", []), ("fax (0)20 1234567", ["(0)20 1234567"]), ("tel:+31612345678", ["+31612345678"]),
                        ("tel 12 34", []), ("+1 (212) 555-0123", ["+1 (212) 555-0123"]), ("0612345678@x.nl tel", ["0612345678@x.nl"])):
        case("phone", text, found)


if __name__ == "__main__":
    for make in (email_cases, ip_cases, iban_cases, card_cases, national_cases, phone_cases):
        make()
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "personal_data_cases.json"), "w") as file:
        file.write("[\n" + ",\n".join(json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in cases) + "\n]\n")
    counts = {}
    for c in cases:
        counts.setdefault(c["group"], [0, 0])[0] += 1
        counts[c["group"]][1] += bool(c["spans"])
    print(counts)
