"""Secrets by their own form: the prefix that a service gives to its keys, or a long word that is made by chance.

Nothing marks these as secrets; they are hidden wherever they occur. A file or a folder whose name is a hash must be
found again, so hexadecimal names stay inside of paths, and so do UUIDs everywhere.
"""

from __future__ import annotations

import re
from itertools import pairwise

from antifreeze.core._pattern import Pattern

HIDDEN = "[hidden]"

_DISTINCT = """
    github_pat_ ghp_ gho_ ghu_ ghs_ ghr_ glpat- gldt- glrt- glptt- glsoat- glagent- glcbt- glimt- glft- xoxa- xoxb-
    xoxe- xoxp- xoxr- xoxs- xoxc- xoxd- xapp- xwfp- sk-proj- sk-ant- sk-or- sk-svcacct- sk-admin- sk-lf- pk-lf-
    sk_live_ sk_test_ rk_live_ rk_test_ pk_live_ pk_test_ whsec_ ya29. GOCSPX- dop_v1_ doo_v1_ dor_v1_ shpat_ shpss_
    shpca_ shppa_ lin_api_ figd_ dckr_pat_ dckr_oat_ nvapi- gsk_ pplx- AGE-SECRET-KEY- hvs. hvb. hvr. tskey- glsa_
    NRAK- NRII- PMAK- sntrys_ sntryu_ wandb_v1_ api_org_ lsv2_pt_ lsv2_sk_ tvly- amzn.mws. sq0atp- sq0csp- sq0idp-
    ATATT ATCTT ATBB CFPAT- xkeysib- xsmtpsib- EAACEdEose pat-na1- pat-eu1- pscale_tkn_ pscale_pw_ rubygems_ dapi_
    ops_eyJ SG.
"""
_WORDLIKE = """
    hf_ npm_ r8_ sk- fw_ tok_ pat_ key- key_ fk- sess- rk- ak- vk1. xai- jina_ ntn_ secret_ phc_ phx_ glc_ pypi-
    fo1_ dapi cloudsmith_ duffel_ hubspot- pul- rdme_ shippo_ vercel_ 1//0 dp.pt. dp.st. dp.ct. dp.sa. co- sk_ pk_
    ms- lt- esecret_ CAESI live_ s.
"""


def _any(text: str) -> str:
    return "|".join(map(re.escape, sorted(text.split(), key=len, reverse=True)))


# A prefix begins a word, or follows an escape such as \n in a text that was rendered with repr.
_START = r"(?:(?<![A-Za-z0-9_])|(?<=\\n)|(?<=\\t)|(?<=\\r))"
_PREFIXED = Pattern(
    rf"{_START}(?:(?:{_any(_DISTINCT)})[\w./+=~-]{{6,}}+"
    # Words of a name have such beginnings, too: what follows is long, or soon has a digit or a capital.
    rf"|(?:{_any(_WORDLIKE)})(?:(?=[a-z]{{0,12}}[A-Z0-9])[A-Za-z0-9]{{9}}|[A-Za-z0-9]{{20}})[\w.-]*+"
    r"|(?:AKIA|ASIA|ABIA|ACCA|AROA|AIDA|AGPA|ANPA|LTAI|AKID)[A-Za-z0-9]{10,}+"
    r"|(?:AC|SK)[0-9a-f]{32}|AIza[\w-]{10,}+|eyJ[\w-]{8,}+(?:\.[\w-]*+){0,4}|\d{8,10}:AA[\w-]{30,}+)"
)
_TOKEN = Pattern(r"[A-Za-z0-9+/_.~%-]{20,}+=*")
_RUN = Pattern(r"[A-Z][a-z]{2,}|[a-z]{3,}")
_HEX = Pattern(r"(?<![0-9A-Za-z])(?:[0-9a-f]{32,}+|[0-9A-F]{32,}+)(?![0-9A-Za-z])")
_VOWEL = Pattern(r"[aeiouy]")
_BASE64 = Pattern(r"[A-Za-z0-9+/_-]{40,}+={0,2}\Z")
_AWS = Pattern(r"[A-Za-z0-9+][A-Za-z0-9+/]{39}\Z")
_MIN_CHARS, _MIN_CHARS_OF_TWO_KINDS, _MIN_CHARS_IN_PATH = 20, 24, 32
_MAX_CHARS = 4_000
"""What is longer is judged by its beginning."""
_RANDOM_CHANGES = 0.30
"""Of chance, two thirds of the letters differ in kind from the one before; of a name, one third or less."""


def hide_forms(text: str) -> str:
    """Return a text without keys of known services and without long words that are made by chance."""
    return _TOKEN.sub(_by_chance, _PREFIXED.sub(HIDDEN, text))


def _by_chance(match: re.Match[str]) -> str:
    token = match[0]
    if "/" not in token:
        return _without_chance(token)
    if _AWS.match(token) and len(_kinds(token)) == 3 and _changes(token) > 0.2 and not token.startswith("/"):
        return HIDDEN
    if _BASE64.match(token) and _is_random(token.rstrip("=").replace("/", "").replace("+", "")):
        return HIDDEN
    parts = token.split("/")
    last = len(parts) - 1
    return "/".join(
        HIDDEN if len(part) >= _MIN_CHARS_IN_PATH and (i < last or "." not in part) and _is_mixed_chance(part) else part
        for i, part in enumerate(parts)
    )


def _without_chance(token: str) -> str:
    hidden = _HEX.sub(HIDDEN, token)
    if hidden != token:
        return hidden
    return "".join(HIDDEN if _is_random(piece.rstrip("=")) else piece for piece in re.split(r"([.%~])", token))


def _is_random(text: str) -> bool:
    """True if capitals, small letters and digits follow each other as they do in no name."""
    if _is_mixed_chance(text):
        return True
    # Names are made of two kinds of letters, too: hide what is long and has no mark between its parts.
    if len(text) < _MIN_CHARS_OF_TWO_KINDS or not text.isalnum() or len(_kinds(text)) < 2:
        return False
    with_digits = "0" in _kinds(text)
    return _changes(text) > (_RANDOM_CHANGES if with_digits else 0.4) and _share_in_words(text) < 0.3


def _is_mixed_chance(text: str) -> bool:
    text = text[:_MAX_CHARS]
    if sum(map(str.isalnum, text)) < _MIN_CHARS or len(_kinds(text)) < 3:
        return False
    marks = text.count("-") + text.count("_")
    in_words = 0.6 if not marks and len(text) >= _MIN_CHARS_IN_PATH else 0.5
    return _changes(text) > (_RANDOM_CHANGES if marks < 3 else 0.36) and _share_in_words(text) < in_words


def _kind(c: str) -> str:
    return "A" if c.isupper() else "a" if c.islower() else "0"


def _kinds(text: str) -> set[str]:
    return {_kind(c) for c in text[:_MAX_CHARS] if c.isalnum()}


def _changes(text: str) -> float:
    """Return the fraction of letters that differ in kind from the previous one."""
    kinds = [_kind(c) for c in text[:_MAX_CHARS] if c.isalnum()]
    return sum(a != b for a, b in pairwise(kinds)) / max(1, len(kinds) - 1)


def _share_in_words(text: str) -> float:
    """Return the fraction of letters that are part of something pronounceable."""
    text = text[:_MAX_CHARS]
    spoken = sum(len(run[0]) for run in _RUN.finditer(text) if _can_be_spoken(run[0].lower()))
    return spoken / max(1, sum(map(str.isalnum, text)))


def _can_be_spoken(run: str) -> bool:
    consonants = _VOWEL.split(run)
    vowels = len(consonants) - 1
    return 0.2 <= vowels / len(run) <= 0.75 and max(map(len, consonants)) <= 3
