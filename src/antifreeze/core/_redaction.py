"""The one redactor of secrets: what errors, logs, reports, evidence and command lines show passes through it.

A secret is recognised in one of four ways, from the certain to the likely:

1. by its position: a password in an address, the value after ``--token`` or ``mysql -p``, the body of a PEM block,
   the value of an ``Authorization`` header (here, and in ``_secrets``);
2. by the name before it: ``AccountKey=``, ``"hf_token": "``, ``Pwd=`` (see ``_secrets``);
3. by a prefix that a service gives to its keys: ``ghp_``, ``xapp-``, ``ya29.``;
4. by chance: a long word in which capitals, small letters and digits follow each other as in no name.

In doubt it is hidden. What is not hidden: words of a language, paths, names of modules and columns (``token_ids``,
``tokens``, ``key``), numbers, run names that are made of words, UUIDs.

Patterns are texts, which ``re`` compiles at their first use and keeps. Compiled here, they would cost every process
that imports the package 8 ms, the fork server first, and most never render an error.

# Invariant: linear time. Every pattern starts at a border that is cheap to find, repeats possessively (``++``) or
# within a small bound, and is followed by no second unbounded repetition of the same characters. Tests feed a megabyte
# of each suspicious shape.
# Tried: one large alternation; it was quadratic on long runs of word characters, and unreadable.
# Tried: importing this module when the first error is rendered. An error about too many open files then could not be
# rendered, because importing opens a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from antifreeze.core._secrets import HIDDEN, CommandReader, Secrecy, hide_forms, is_secret_in_query, secrecy_of

_MAX_WORDS, _MAX_WORD_CHARS = 40, 200
_MAX_READ_CHARS = 10 * _MAX_WORD_CHARS
_SUSPICIOUS = (
    r"[=@$]|://|-----|<<<|\S:|(?i:bearer|basic|apikey|password|login|token|auth|cookie|secret|identified)"
    r"|[A-Za-z0-9+/_.~%-]{14}|(?<![\w-])-"
)

# -- by position ---------------------------------------------------------------------------------------------------
_PLAIN_USERS = ("abfs", "abfss", "wasb", "wasbs", "ssh", "git+ssh", "svn+ssh", "sftp", "rsync", "hdfs")
"""What is before the ``@`` in these is a container or a user, unless there is a colon in it."""
_ADDRESS = r"(?<![\w+.-])([A-Za-z][\w+.-]{1,30})(:/{1,2}+)"  # a path that was an address has one slash
_USER = r"[^\s/?#\"'<>`]{1,1000}@"
_USER_WITH_SLASH = r"[^\s/:@?#\"'<>`]{0,200}:(?!\d{1,5}(?:[/?#,]|\Z))[^\s@\"'<>`]{1,500}@(?=[\w.\[-]+)"
_PARAMETER = r"(?i)((?:[?&;]|%3F|%26)([\w.-]{1,100})(?:=|%3D))[^&\s\"'<>;`]+"
_PLACES = (
    (
        r"(?s)()-----BEGIN [A-Z0-9 ]{0,40}(?:PRIVATE KEY|CERTIFICATE|MESSAGE)[A-Z ]{0,20}-----"
        r".*?(?:-----END [A-Z0-9 ]{0,60}-----|\Z)"
    ),
    (
        r"(hooks\.slack\.com/(?:services|workflows)/|discord(?:app)?\.com/api/webhooks/|\.webhook\.office\.com/"
        r"|api\.telegram\.org/(?:file/)?bot)[^\s\"'<>]+"
    ),
    r"(?<![\w/.@:%-])([\w.-]{1,64}:)[^\s:@/\"',;]{1,128}(?=@(?!sha256:)[A-Za-z0-9])",
    (
        r"(?i)(?<![\w-])((?:(?:proxy-)?authorization|(?:set-)?cookie|x-[\w-]{0,60}(?:key|token|secret|signature)"
        r"|(?:private|job|deploy)-token|api-key)\\{0,4}[\"']?\s{0,3}:\s{0,3}\\{0,4}[\"']?)(?=\S)[^\n\"'\\]+"
    ),
    r"(?<![\w./:-])([\w.*-]{1,200}:(?:\d{2,5}|\*):[\w*-]{1,100}:[\w*.-]{1,100}:)[^\s\"']+",  # .pgpass
    r"((?<![^\s\"\'])/p:)[^\s\"\']+",
    (
        r"(?<![\w-])((?i:bearer|basic|api-?key)\s{1,3})"
        r"(?!(?:[A-Za-z]?[a-z_]++|[A-Z_]{1,12})[.]?(?![\w+/.=~-]))[\w+/.=~-]{6,}"
    ),
    r"(\b(?:login|authenticate|set_(?:api_)?(?:key|token)|getpass)\(\s{0,3}[\"'])[^\"'\n]{1,500}",
    (
        r"(?i)(\b(?:password|passwd|passphrase|secret|api[ _]key|token)\s{1,3}(?:is|was)\s{1,3}[\"'`]?)"
        r"(?=[^\s\"'`]{0,60}\d)[^\s\"'`]{4,}+"
    ),
    r"(?i)(\b(?:identified\s{1,3}by|password)\s{1,3}(?:password\s{1,3})?['\"])[^'\"\n]{1,500}(?=['\"])",
    r"(?i)(\blogin\s{1,3}\S{1,200}\s{1,3}password\s{1,3})\S+",  # .netrc
    r"()\$(?:1|2[abxy]?|5|6|7|y|gy|apr1|argon2\w{0,2}|scrypt|pbkdf2[\w-]{0,12})\$[^\s\"']{8,}",  # crypt(3)
    (
        r"(\b(?:echo|printf)\s{1,3}(?:-\w{1,2}\s{1,3})?)(?:\"[^\"\n]{1,200}\"|'[^'\n]{1,200}'|[^\s|\"']{1,200})"
        r"(?=\s{0,3}\|[^|]{0,200}(?:stdin|sudo|login|passwd))"
    ),
    r"(<<<\s{0,3})(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s\"']+)",
)
"""The first group stays, and what is after it is hidden."""
_ITEM = r"(?:'[^'\n]{0,2000}+'|\"[^\"\n]{0,2000}+\")"
_ARGV = rf"\[{_ITEM}(?:, {_ITEM})++\]"
_ENTRY = (
    r"(?i)(\bname[\"']?\s{0,3}[:=]\s{0,3}[\"']?([\w.-]{1,100})[\"']?(?:,|\s|\\n){1,12}[\"']?value[\"']?\s{0,3}[:=]"
    r"\s{0,3}[\"']?)[^\s\"',}]+"
)

# -- by name -------------------------------------------------------------------------------------------------------
_NAME = (
    r"(?<![\w.-])[+~]{0,2}(-{0,2}[A-Za-z_][\w.-]*+)"
    r"((?:\\{0,4}[\"'])?\]?\s{0,3}(?:=>|:=|==?|:(?![/:]))\s{0,3}|(?:\\{0,4}[\"'],?)?\s{1,3}(?=\S))"
)
"""A name and the sign after it: ``name=``, ``"name": ``, or only a blank after an option."""
_VALUE = r"(?:[^\s\"'<>;,&`]|[;,&](?!\s|\Z|[\w .-]{1,40}+[=:]|[\"']))++"
_NEXT_OPTION = r"--[a-z][a-z-]+(?:=.*)?|-[a-zA-Z]"
_NOTHING = (
    r"(?is)(?:[{\[(].*|none|null|nil|true|false|yes|no|on|off|auto|default|empty|unset|missing|required|optional|\*+"
    r"|x{3,}|\.{3,}|…|\$\{?[\w.]+[^}]{0,80}\}?|\$\([^)]{0,200}\)?|%[\w]+%|<[\w .-]{1,80}>?|.*\[hidden\].*|\W?)"
)
_TYPE = (
    r"(?i)(?:typing\.|pa\.|pyarrow\.|torch\.|np\.|numpy\.)?(?:u?int(?:8|16|32|64)?|b?float(?:16|32|64)?|half|double"
    r"|bool(?:ean)?|str(?:ing)?|text|bytes|(?:large_)?(?:string|binary|utf8|list)|list|dict|set|tuple|map|struct|object"
    r"|any|date(?:32|64)?|time(?:stamp|32|64)?|decimal(?:128)?|dictionary|tensor|ndarray|array|callable|optional|path)"
    r"(?:[\[<(|].{0,200})?"
)
_CODE = (
    r"(?:self|cls|os|sys|args|cfg|config|conf|opt|options|settings|env|kwargs|getpass|getenv|lambda|request|ctx|context"
    r"|user)\b[\w.\[\]()'\"=-]*|[a-z_][\w.]*[\[(].*"
)
_NUMBER = r"[+-]?[\d_]{1,6}(?:\.\d{0,6})?(?:e[+-]?\d{1,3})?%?"
_PLAIN_OR_PATH = r"(?:[A-Za-z]?[a-z_]{0,30}|[A-Z_]{1,12})[.:!?)]?|(?:/|\.{1,2}/|~/).*|.*\.(?:pem|json|yaml|txt|key)"


def redact(text: str) -> str:
    """Return a text without what looks like a secret. What is around a secret stays."""
    if not re.search(_SUSPICIOUS, text):
        return text
    if "['" in text or '["' in text:
        text = re.sub(_ARGV, _argv, text)
    text = redact_addresses(text)
    for place in _PLACES:
        text = re.sub(place, rf"\1{HIDDEN}", text)
    text = re.sub(_ENTRY, lambda found: f"{found[1]}{HIDDEN}" if secrecy_of(found[2]) else found[0], text)
    text = _by_name(text)
    if CommandReader.finds_a_tool(text):
        text = _in_commands(text)
    return hide_forms(text)


def redact_addresses(text: str) -> str:
    """Return a text without credentials in the addresses in it, and otherwise as it is."""
    if ":/" not in text:
        return text
    parts, at = [], 0
    for found in re.finditer(_ADDRESS, text):
        if found.end() < at:
            continue
        # A password may have ``@`` and ``/`` in it.
        user = re.compile(_USER).match(text, found.end())
        if user is None or ":" not in user[0]:
            user = re.compile(_USER_WITH_SLASH).match(text, found.end()) or user
        is_plain = found[1].lower() in _PLAIN_USERS or found[2] == ":/"
        if user is None or (is_plain and ":" not in user[0]):
            continue
        parts += [text[at : found.end()], f"{HIDDEN}@"]
        at = user.end()
    text = "".join([*parts, text[at:]])
    return re.sub(_PARAMETER, lambda found: f"{found[1]}{HIDDEN}" if is_secret_in_query(found[2]) else found[0], text)


def redact_command(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command line without what looks like a secret; environments are never shown at all."""
    shown = [word if len(word) <= _MAX_WORD_CHARS else word[:_MAX_WORD_CHARS] + "..." for word in _command(words)]
    return tuple([*shown, "..."] if len(words) > _MAX_WORDS else shown)


def _command(words: Sequence[str]) -> Iterator[str]:
    reader = CommandReader()
    for before, long_word in zip(["", *words], words[:_MAX_WORDS], strict=False):
        word = long_word[:_MAX_READ_CHARS]
        at = reader.hidden_from(word)
        name, _, value = word.partition("=")
        is_program = re.fullmatch("-[A-Za-z]*c", before) and not re.fullmatch("[\\w./@:=+-]*", word)
        if at is not None:
            yield word[:at] + HIDDEN
        elif is_program and not word.startswith("from multiprocessing."):
            yield "..."  # a program in the command line may hold anything
        elif value and re.fullmatch(r"[+~]{0,2}-{0,2}[\w./@-]+", name) and not _is_shown(name, "", value):
            yield f"{name}={HIDDEN}"  # here the value is the whole rest, blanks and all
        else:
            yield redact(word)


def _argv(found: re.Match[str]) -> str:
    """Return a list of words, as Python prints a command line, without what looks like a secret."""
    words = [word[1:-1] for word in re.findall(_ITEM, found[0])]
    if not any(word.startswith("-") for word in words) and not CommandReader.finds_a_tool(found[0]):
        return found[0]
    return "[" + ", ".join(f"'{word}'" for word in redact_command(words)) + "]"


def _in_commands(text: str) -> str:
    """Return a text without what known programs are given as passwords: ``curl -u me:X``."""
    reader = CommandReader(is_text=True)
    parts = re.split(r"(\s+)", text)
    for i in range(0, len(parts), 2):
        bare = parts[i].strip("\"'`,()[]")
        at = reader.hidden_from(bare)
        if at is not None and HIDDEN not in parts[i]:
            parts[i] = parts[i].replace(bare, bare[:at] + HIDDEN)
    return "".join(parts)


def _by_name(text: str) -> str:
    """Return a text without values that follow a name: ``name=value``, ``"name": "value"``, ``--name value``."""
    parts, at = [], 0
    for found in re.finditer(_NAME, text):
        name, sign = found[1], found[2].strip("\\\"'], \t\n")
        is_option = re.fullmatch(r"--[\w.-]+|-[a-z][a-z-]+", name)
        if found.start() < at or not (sign or is_option) or secrecy_of(name) is Secrecy.NONE:
            continue
        begin, end = _value_span(text, found.end(), sign)
        value = text[begin:end]
        if not value or (not sign and re.fullmatch(_NEXT_OPTION, value, re.DOTALL)) or _is_shown(name, sign, value):
            continue
        parts += [text[at:begin], HIDDEN]
        at = end
    return "".join([*parts, text[at:]])


def _value_span(text: str, begin: int, sign: str) -> tuple[int, int]:
    """Return where a value begins and ends: with its quotes, or with the word."""
    quote = re.compile(r"\\{0,4}[\"']").match(text, begin)
    if quote is not None:
        close = text.find(quote[0], quote.end())
        return quote.end(), close if close >= 0 else len(text)
    value = re.compile(_VALUE).match(text, begin)
    if value is None:
        return begin, begin
    return begin, begin + len(value[0].rstrip(")]},;.:!?\\") if sign else value[0])


def _is_shown(name: str, sign: str, value: str) -> bool:
    """True if a value is none, a type or code; after a weak name also a number and, where likely, a word or a path."""
    secrecy = secrecy_of(name)
    if secrecy is Secrecy.NONE or value == name or re.fullmatch(_NOTHING, value):
        return True
    if sign and (re.fullmatch(_TYPE, value) or re.fullmatch(_CODE, value, re.DOTALL)):
        return True
    if secrecy is Secrecy.STRONG:
        return False
    # ``--image-key jpg`` and ``token: string`` are rather data; ``--token jpg`` is not.
    is_token = name.lower().endswith(("token", "auth", "pass", "session", "signature", "sig"))
    is_plain = bool(re.fullmatch(_PLAIN_OR_PATH, value)) and (":" in sign or not is_token)
    return is_plain or bool(re.fullmatch(_NUMBER, value) or re.fullmatch(_TYPE, value))
