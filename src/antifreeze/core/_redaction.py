"""The one redactor of secrets: what errors, logs, reports, evidence and command lines show passes through it.

A secret is recognised in one of four ways, from the certain to the likely:

1. by its position: a password in an address, the value after ``--token`` or ``mysql -p``, the body of a PEM block,
   the value of an ``Authorization`` header;
2. by the name before it: ``AccountKey=``, ``"hf_token": "``, ``Pwd=`` (see ``_secret_names``);
3. by a prefix that a service gives to its keys: ``ghp_``, ``xapp-``, ``ya29.``;
4. by chance: a long word in which capitals, small letters and digits follow each other as in no name.

In doubt it is hidden. What is not hidden: words of a language, paths, names of modules and columns (``token_ids``,
``tokens``, ``key``), numbers, run names that are made of words, UUIDs.

# Invariant: linear time. Every pattern starts at a border that is cheap to find, repeats possessively (``++``) or
# within a small bound, and is followed by no second unbounded repetition of the same characters. Tests feed a megabyte
# of each suspicious shape.
# Tried: one large alternation; it was quadratic on long runs of word characters, and unreadable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from antifreeze.core._pattern import Pattern
from antifreeze.core._secret_commands import CommandReader, WordKind
from antifreeze.core._secret_forms import HIDDEN, hide_forms
from antifreeze.core._secret_names import Secrecy, is_secret_in_query, secrecy_of

_MAX_WORDS, _MAX_WORD_CHARS = 40, 200
_MAX_READ_CHARS = 10 * _MAX_WORD_CHARS
_NEAR_CHARS = 200

# -- by position ---------------------------------------------------------------------------------------------------
_PEM = Pattern(
    r"-----BEGIN [A-Z0-9 ]{0,40}(?:PRIVATE KEY|CERTIFICATE|MESSAGE)[A-Z ]{0,20}-----"
    r".*?(?:-----END [A-Z0-9 ]{0,60}-----|\Z)",
    re.DOTALL,
)
_PLAIN_USERS = ("abfs", "abfss", "wasb", "wasbs", "ssh", "git+ssh", "svn+ssh", "sftp", "rsync", "hdfs")
"""What is before the ``@`` in these is a container or a user, unless there is a colon in it."""
_ADDRESS = Pattern(r"(?<![\w+.-])([A-Za-z][\w+.-]{1,30})(:/{1,2}+)")  # a path that was an address has one slash
_USER = Pattern(r"[^\s/?#\"'<>`]{1,1000}@")
_USER_WITH_SLASH = Pattern(r"[^\s/:@?#\"'<>`]{0,200}:(?!\d{1,5}(?:[/?#,]|\Z))[^\s@\"'<>`]{1,500}@(?=[\w.\[-]+)")
_BARE_USER = Pattern(r"(?<![\w/.@:%-])([\w.-]{1,64}:)([^\s:@/\"',;]{1,128})@(?!sha256:)(?=[A-Za-z0-9])")
_WEBHOOK = Pattern(
    r"((?:hooks\.slack\.com/(?:services|workflows)/|discord(?:app)?\.com/api/webhooks/|\.webhook\.office\.com/)|api\.telegram\.org/(?:file/)?bot)"
    r"[^\s\"'<>]+"
)
_HEADER = Pattern(
    r"(?i)(?<![\w-])((?:proxy-)?authorization|(?:set-)?cookie|x-[\w-]{0,60}(?:key|token|secret|signature)|(?:private|job|deploy)-token|api-key)"
    r"(\\{0,4}[\"']?\s{0,3}:\s{0,3}\\{0,4}[\"']?)(?=\S)[^\n\"'\\]+"
)
_SCHEME = Pattern(r"(?i)(?<![\w-])(bearer|basic|api-?key)(\s{1,3})([\w+/.=~-]{6,})")
_ENTRY = Pattern(
    r"(?i)(\bname[\"']?\s{0,3}[:=]\s{0,3}[\"']?)([\w.-]{1,100})([\"']?(?:,|\s|\\n){1,12}[\"']?value[\"']?\s{0,3}[:=]\s{0,3}[\"']?)"
    r"[^\s\"',}]+"
)
_SAID = Pattern(
    r"(?i)(\b(?:password|passwd|passphrase|secret|api[ _]key|token)\s{1,3}(?:is|was)\s{1,3}[\"'`]?)"
    r"(?=[^\s\"'`]{0,60}\d)[^\s\"'`]{4,}+"
)
_SQL = Pattern(r"(?i)(\b(?:identified\s{1,3}by|password)\s{1,3}(?:password\s{1,3})?)(['\"])[^'\"\n]{1,500}\2")
_NETRC = Pattern(r"(?i)(\blogin\s{1,3}\S{1,200}\s{1,3}password\s{1,3})\S+")
_PGPASS = Pattern(r"(?<![\w./:-])([\w.*-]{1,200}:(?:\d{2,5}|\*):[\w*-]{1,100}:[\w*.-]{1,100}:)[^\s\"']+")
_CRYPT = Pattern(r"\$(?:1|2[abxy]?|5|6|7|y|gy|apr1|argon2\w{0,2}|scrypt|pbkdf2[\w-]{0,12})\$[^\s\"']{8,}")
_PIPED = Pattern(
    r"(\b(?:echo|printf)\s{1,3}(?:-\w{1,2}\s{1,3})?)(\"[^\"\n]{1,200}\"|'[^'\n]{1,200}'|[^\s|\"']{1,200})(?=\s{0,3}\|[^|]{0,200}(?:stdin|sudo|login|passwd))"
)
_HERE_STRING = Pattern(r"(<<<\s{0,3})(\"[^\"\n]{1,200}\"|'[^'\n]{1,200}'|[^\s\"']+)")

# -- by name -------------------------------------------------------------------------------------------------------
_NAME = Pattern(
    r"(?<![\w.-])[+~]{0,2}(-{0,2}[A-Za-z_][\w.-]*+)((?:\\{0,4}[\"'])?\]?\s{0,3}(?:=>|:=|==?|:(?![/:]))\s{0,3})"
)
_FLAG = Pattern(r"(?<![\w.-])(--?[A-Za-z][\w.-]*+)((?:\\{0,4}[\"'],?)?\s{1,3})(?=\S)")
_SHORT_FLAG = Pattern(r"((?<![\w-])-p\s{0,2})(?![\s-])([^\s\"'`,;]{3,200})(?=[\s\"'`,;]|\Z)")
_DIGIT, _LETTER = Pattern(r"\d"), Pattern(r"[A-Za-z]")
_CALL = Pattern(r"(\b(?:login|authenticate|set_(?:api_)?(?:key|token)|getpass)\(\s{0,3})([\"'])[^\"'\n]{1,500}\2")
_WHOLE_NAME = Pattern(r"[+~]{0,2}-{0,2}[\w./@-]+")
_NEXT_OPTION = Pattern(r"--[a-z][a-z-]+(?:=.*)?\Z|-[a-zA-Z]\Z", re.DOTALL)
_OPTION = Pattern(r"--[\w.-]+|-[a-z][a-z-]+")
_QUOTED = Pattern(r"\\{0,4}([\"'])")
_VALUE = Pattern(r"(?:[^\s\"'<>;,&`]|[;,&](?!\s|\Z|[\w .-]{1,40}+[=:]|[\"']))++")
_ANY_TO_BREAK = Pattern(r"[^\n\"]+")
_NOTHING = Pattern(
    r"(?i)(?:none|null|nil|true|false|yes|no|on|off|auto|default|empty|unset|missing|required|optional|\*+|x{3,}|\.{3,}|…|\$\{?[\w.]+[^}]{0,80}\}?|"
    r"\$\([^)]{0,200}\)?|%[\w]+%|<[\w .-]{1,80}>?|\[hidden\]?|\{\{?[\w .]{0,80}\}?\}?|\W?)\Z"
)
_TYPE = Pattern(
    r"(?i)(?:typing\.|pa\.|pyarrow\.|torch\.|np\.|numpy\.)?(?:u?int(?:8|16|32|64)?|b?float(?:16|32|64)?|half|double|bool(?:ean)?|str(?:ing)?|text|bytes|"
    r"(?:large_)?(?:string|binary|utf8|list)|list|dict|set|tuple|map|struct|object|any|date(?:32|64)?|time(?:stamp|32|64)?|decimal(?:128)?|dictionary|"
    r"tensor|ndarray|array|callable|optional|path)(?:[\[<(|].{0,200})?\Z"
)
_NUMBER = Pattern(r"[+-]?[\d_]{1,6}(?:\.\d{0,6})?(?:e[+-]?\d{1,3})?%?\Z")
_PLAIN = Pattern(r"(?:[A-Za-z]?[a-z_]{0,30}|[A-Z_]{1,12})[.:!?)]?\Z")
_CODE = Pattern(
    r"(?:self|cls|os|sys|args|cfg|config|conf|opt|options|settings|env|kwargs|getpass|getenv|lambda|request|ctx|context|user)\b[\w.\[\]()'\"=-]*\Z|[a-z_][\w.]*[\[(].*\Z"
)

_SUSPICIOUS = Pattern(
    r"[=@$]|://|-----|<<<|\S:|(?i:bearer|basic|apikey|password|login|token|auth|cookie|secret|identified)|[A-Za-z0-9+/_.~%-]{14}|(?<![\w-])-"
)
_ARGV = Pattern(r"\[(?:'[^'\n]{0,2000}+'|\"[^\"\n]{0,2000}+\")(?:, (?:'[^'\n]{0,2000}+'|\"[^\"\n]{0,2000}+\"))++\]")
_ITEM = Pattern(r"'([^']*)'|\"([^\"]*)\"")
_PROGRAM = Pattern(r"-[A-Za-z]*c")
_WORDLIKE = Pattern(r"[\w./@:=+-]*")


def redact(text: str) -> str:
    """Return a text without what looks like a secret. What is around a secret stays."""
    if not _SUSPICIOUS.search(text):
        return text
    if "-----BEGIN" in text:
        text = _PEM.sub(HIDDEN, text)
    if "['" in text or '["' in text:
        text = _ARGV.sub(_argv, text)
    text = _by_place(text)
    text = _by_name(text)
    if "-" in text:
        text = _by_flag(text)
    if CommandReader.knows_a_tool(text):
        text = _in_commands(text)
    return hide_forms(text)


def redact_command(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command line without what looks like a secret; environments are never shown at all."""
    shown = [word if len(word) <= _MAX_WORD_CHARS else word[:_MAX_WORD_CHARS] + "..." for word in _command(words)]
    return tuple([*shown, "..."] if len(words) > _MAX_WORDS else shown)


def redact_addresses(text: str) -> str:
    """Return a text without credentials in the addresses in it, and otherwise as it is."""
    return _in_queries(_in_addresses(text)) if ":/" in text else text


def _command(words: Sequence[str]) -> Iterator[str]:
    reader = CommandReader()
    for i, long_word in enumerate(words[:_MAX_WORDS]):
        word = long_word[:_MAX_READ_CHARS]
        kind = reader.read(word)
        if kind is WordKind.SECRET:
            yield HIDDEN
            continue
        if kind is WordKind.ATTACHED:
            yield word[:2] + HIDDEN
            continue
        is_program = i > 0 and bool(_PROGRAM.fullmatch(words[i - 1])) and not _WORDLIKE.fullmatch(word)
        if is_program and not word.startswith("from multiprocessing."):
            yield "..."  # a program in the command line may hold anything
            continue
        name, sign, value = word.partition("=")
        if sign and value and "://" not in name and _hides_whole_word(name, value):
            yield f"{name}={HIDDEN}"
        else:
            yield redact(word)


def _hides_whole_word(name: str, value: str) -> bool:
    if not _WHOLE_NAME.fullmatch(name):
        return False
    match secrecy_of(name):
        case Secrecy.STRONG:
            return not _is_nothing(value)
        case Secrecy.WEAK:
            return not _is_harmless(value, plain_words=_may_be_plain(name))
    return False


def _may_be_plain(name: str) -> bool:
    """True if a plain word after a weak name is rather data: ``--image-key jpg``, ``--wandb offline``."""
    return not name.lower().endswith(("token", "auth", "pass", "session", "signature", "sig", "pin"))


def _argv(match: re.Match[str]) -> str:
    """Return a list of words, as Python prints a command line, without what looks like a secret."""
    words = [found[1] or found[2] or "" for found in _ITEM.finditer(match[0])]
    if not any(word.startswith("-") for word in words) and not CommandReader.knows_a_tool(match[0]):
        return match[0]
    return "[" + ", ".join(f"'{word}'" for word in redact_command(words)) + "]"


# -- positions -----------------------------------------------------------------------------------------------------


def _by_place(text: str) -> str:
    if ":/" in text:
        text = _in_queries(_in_addresses(text))
        text = _WEBHOOK.sub(rf"\1{HIDDEN}", text)
    if "@" in text:
        text = _BARE_USER.sub(rf"\1{HIDDEN}@", text)
    if ":" in text:
        text = _HEADER.sub(rf"\1\2{HIDDEN}", text)
        text = _PGPASS.sub(rf"\1{HIDDEN}", text)
    text = _SCHEME.sub(_scheme, text)
    text = _CALL.sub(rf"\1\2{HIDDEN}\2", text)
    text = _ENTRY.sub(lambda m: f"{m[1]}{m[2]}{m[3]}{HIDDEN}" if secrecy_of(m[2]) else m[0], text)
    text = _SAID.sub(rf"\1{HIDDEN}", text)
    text = _SQL.sub(rf"\1\2{HIDDEN}\2", text)
    text = _NETRC.sub(rf"\1{HIDDEN}", text)
    if "$" in text:
        text = _CRYPT.sub(HIDDEN, text)
    if "|" in text:
        text = _PIPED.sub(rf"\1{HIDDEN}", text)
    return _HERE_STRING.sub(rf"\1{HIDDEN}", text) if "<<<" in text else text


def _in_addresses(text: str) -> str:
    """Return a text without users and passwords in addresses; a password may have ``@`` and ``/`` in it."""
    parts, at = [], 0
    for found in _ADDRESS.finditer(text):
        if found.end() < at:
            continue
        user = _USER.match(text, found.end())
        if user is None or ":" not in user[0]:
            user = _USER_WITH_SLASH.match(text, found.end()) or user
        is_plain = found[1].lower() in _PLAIN_USERS or found[2] == ":/"
        if user is None or (is_plain and ":" not in user[0]):
            continue
        parts += [text[at : found.end()], f"{HIDDEN}@"]
        at = user.end()
    return "".join([*parts, text[at:]])


_PARAMETER = Pattern(r"([?&;]|%3F|%26)([\w.-]{1,100})(=|%3D)([^&\s\"'<>;`]+)", re.IGNORECASE)


def _in_queries(text: str) -> str:
    return _PARAMETER.sub(lambda m: f"{m[1]}{m[2]}{m[3]}{HIDDEN}" if is_secret_in_query(m[2]) else m[0], text)


def _scheme(match: re.Match[str]) -> str:
    value = match[3]
    plain = value.isalpha() and (value.islower() or value.istitle())
    return match[0] if plain or _PLAIN.match(value) or HIDDEN in value else f"{match[1]}{match[2]}{HIDDEN}"


# -- names ---------------------------------------------------------------------------------------------------------


def _by_name(text: str) -> str:
    """Return a text without values that follow a name: ``name=value``, ``"name": "value"``."""
    parts, at = [], 0
    for found in _NAME.finditer(text):
        if found.start() < at:
            continue
        secrecy = secrecy_of(found[1])
        if secrecy is Secrecy.NONE:
            continue
        span = _value_span(text, found.end(), found[2])
        if span is None:
            continue
        begin, end = span
        value = text[begin:end]
        plain = ":" in found[2] or _may_be_plain(found[1])
        if _is_shown(secrecy, found[1], value, plain_words=plain):
            continue
        parts += [text[at:begin], HIDDEN]
        at = end
    return "".join([*parts, text[at:]])


def _by_flag(text: str) -> str:
    """Return a text without values that follow an option: ``--password value``, ``mysql -pvalue``."""
    parts, at = [], 0
    for found in _FLAG.finditer(text):
        if found.start() < at:
            continue
        secrecy = secrecy_of(found[1])
        if secrecy is Secrecy.NONE or not _OPTION.fullmatch(found[1]):
            continue
        span = _value_span(text, found.end(), "")
        if span is None:
            continue
        begin, end = span
        value = text[begin:end]
        if _NEXT_OPTION.match(value):
            continue
        if _is_nothing(value) or (secrecy is Secrecy.WEAK and _is_harmless(value, plain_words=_may_be_plain(found[1]))):
            continue
        parts += [text[at:begin], HIDDEN]
        at = end
    return _SHORT_FLAG.sub(_short_flag, "".join([*parts, text[at:]]))


def _short_flag(match: re.Match[str]) -> str:
    value = match[2]
    is_word = not (_DIGIT.search(value) and _LETTER.search(value))
    if (
        is_word
        or "/" in value
        or "." in value
        or CommandReader.knows_another_p(match.string[: match.start()][-_NEAR_CHARS:])
    ):
        return match[0]
    return f"{match[1]}{HIDDEN}"


def _in_commands(text: str) -> str:
    """Return a text without what known programs are given as passwords: ``curl -u me:X``."""
    reader = CommandReader(is_text=True)
    parts = re.split(r"(\s+)", text)
    for i in range(0, len(parts), 2):
        bare = parts[i].strip("\"'`,()")
        kind = reader.read(bare)
        if kind is WordKind.SECRET and HIDDEN not in parts[i]:
            parts[i] = HIDDEN
        elif kind is WordKind.ATTACHED:
            parts[i] = bare[:2] + HIDDEN
    return "".join(parts)


def _value_span(text: str, begin: int, sign: str) -> tuple[int, int] | None:
    """Return where a value begins and ends: with its quotes, or with the word."""
    quote = _QUOTED.match(text, begin)
    if quote is not None:
        close = text.find(quote[0], quote.end())
        end = close if close >= 0 else len(text)
        return (quote.end(), end) if end > quote.end() else None
    if begin >= len(text):
        return None
    value = _VALUE.match(text, begin)
    if value is None:
        return None
    whole = value[0]
    kept = whole.rstrip(")]},;.:!?\\") if sign else whole
    return (begin, begin + len(kept)) if kept else None


def _is_shown(secrecy: Secrecy, name: str, value: str, *, plain_words: bool) -> bool:
    if _is_nothing(value) or _TYPE.match(value) or _CODE.match(value) or value == name:
        return True
    return secrecy is Secrecy.WEAK and _is_harmless(value, plain_words=plain_words)


def _is_nothing(value: str) -> bool:
    return value[:1] in ("{", "[", "(") or HIDDEN in value or bool(_NOTHING.match(value))


def _is_harmless(value: str, *, plain_words: bool) -> bool:
    """True if a value after a weak name is a number, a type, or, where that is likely, a plain word or a path."""
    if _is_nothing(value) or _NUMBER.match(value) or _TYPE.match(value):
        return True
    is_path = value.startswith(("/", "./", "../", "~/")) or value.endswith((".pem", ".json", ".yaml", ".txt", ".key"))
    return plain_words and (bool(_PLAIN.match(value)) or is_path)
