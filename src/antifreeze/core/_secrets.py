"""What reveals a secret: a name (``HF_TOKEN``), its form (``ghp_...``), or its position in a command (``mysql -pX``).

**Names.** A name is taken apart into its words (``hfToken`` and ``HF_TOKEN`` have the same two). ``token_ids``,
``max_tokens`` and ``pad_token`` are names of data. In doubt it names a secret.

**Forms.** Keys have the prefix of their service, or are long words in which capitals, small letters and digits follow
each other as in no name; they are hidden wherever they occur. A file or a folder whose name is a hash must be found
again, so hexadecimal names stay inside of paths, and so do UUIDs everywhere.

**Commands.** Most programs name their secrets (``--password X``). Some do not: ``mysql -pX``, ``curl -u me:X``,
``wandb login X``. These are listed here. Of a program that is not listed, ``-p X`` is taken for a password unless X is
a number or a port, or the program is known to mean something else by it.
"""

from __future__ import annotations

import enum
import functools
import re
from itertools import pairwise

HIDDEN = "[hidden]"

# -- names ---------------------------------------------------------------------------------------------------------

_MAX_NAME = 200


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


class Secrecy(enum.IntEnum):
    """What a name implies about the value that follows it."""

    NONE = 0
    """Nothing: the value is shown, unless it looks like a secret by itself."""
    WEAK = 1
    """It is often a secret and often data: ``key``, ``token``. Values that are words, numbers or types are shown."""
    STRONG = 2
    """It is a secret whatever it looks like."""


_STRONG = (
    r"passw|passphrase|passcode|secret|credential|cookie|authorization|bearer|webhook|requirepass|masterauth"
    r"|(?:api|access|account|private|auth)_?key|session_?id"
    r"|(?:api|access|auth|sas|csrf)_?token"
    r"|(?:db|smtp|ftp|store|key|user)pass|[a-z]token\Z|pwd(?:_|\Z)"
    r"|(?:\A|_)(?:pw|pass(?:in|out)|creds?|t?otp|mfa|jwt|sas|[cx]srf|dsn|psk|wpa)(?:_|\Z)|(?:\A|_)pin\Z"
)
"""Parts of a name in small letters, with its words joined by underscores."""
_WEAK = word_set("token key auth session signature sig pass salt hmac pat")
_SERVICES = word_set(
    "wandb openai anthropic hf huggingface comet neptune github gitlab replicate npm pypi sendgrid stripe twilio"
)
"""Alone they are weak names: ``--wandb=X`` may be a switch or a key."""
_IN_QUERY = word_set("code sid sign h hash policy")
"""Weak names are strong in the query of an address, and so are these."""
_OWNERS = word_set(
    """api access secret private account shared storage master encryption encrypt signing sign auth license ssh rsa
    client service consumer app application admin root wandb openai anthropic cohere mistral replicate hf huggingface
    hub comet neptune clearml mlflow aws azure gcp google github gitlab git gh slack discord telegram bot stripe twilio
    sendgrid pypi npm docker registry datadog dd sentry kaggle bearer refresh id session security oauth personal
    deploy pat jwt x sas login user db database redis mongo mysql postgres pg vault consul nomad cloudflare heroku
    digitalocean tailscale ngrok vpn wifi smtp mail webhook csrf xsrf lakefs minio r2 wasabi b2 snowflake databricks"""
)
"""Before ``key`` and ``token`` they make a strong name."""
_SUFFIXES = word_set("value val str string raw b prod dev staging new old current plain cleartext text")
_OF_DATA = word_set(
    """file files filename path paths dir folder length len size count num number ids type types column columns col
    cols dim dims name names field fields policy min max required enabled disabled manager provider expiry ttl url uri
    endpoint version prompt stdin helper timeout limit index mask list embedding embeddings class cls func fn function
    mode format rotation age interval rate weight weights loss model models store backend map order"""
)
"""A name that ends with one of these is of something about a secret, or of none."""
_KEYS_OF_DATA = word_set(
    """image images text sort primary foreign cache dict label labels data caption join partition group order map json
    column feature features target input output audio video hot public config state sample index row bucket object
    value url weight loss metric pad eos bos unk mask sep cls special next prev start end first last begin new per max
    min num n by lookup name field batch source src dst tgt question answer prompt context query head no each every any
    which of with the same unknown missing unexpected duplicate invalid shuffle color bias soft hard prefix suffix
    current attention"""
)
"""Before a weak name they make it one of data: ``image_key``, ``pad_token``."""


@functools.lru_cache(maxsize=2048)
def secrecy_of(name: str) -> Secrecy:
    """Return what a name implies about the value after it: ``--db-password`` and ``DB_PASSWORD`` are equivalent."""
    words = _words(name)
    while len(words) > 1 and (words[-1].isdecimal() or words[-1] in _SUFFIXES):
        words.pop()
    if not words or words[-1] in _OF_DATA:
        return Secrecy.NONE
    if re.search(_STRONG, "_".join(words)):
        return Secrecy.STRONG
    if len(words) == 1:
        return Secrecy.WEAK if words[0] in _WEAK or words[0] in _SERVICES else Secrecy.NONE
    if words[-1] in ("key", "token") and words[-2] in _OWNERS:
        return Secrecy.STRONG
    return Secrecy.WEAK if words[-1] in _WEAK and words[-2] not in _KEYS_OF_DATA else Secrecy.NONE


def is_secret_in_query(name: str) -> bool:
    """True if a parameter of an address holds a secret: there even ``key`` and ``code`` do."""
    return secrecy_of(name) is not Secrecy.NONE or not _IN_QUERY.isdisjoint(_words(name)[-1:])


def _words(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name[-_MAX_NAME:])]


# -- forms ---------------------------------------------------------------------------------------------------------

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
_PREFIXED = (
    rf"(?:(?<![A-Za-z0-9_])|(?<=\\n)|(?<=\\t)|(?<=\\r))(?:(?:{_any(_DISTINCT)})[\w./+=~-]{{6,}}+"
    # Words of a name have such beginnings, too: what follows is long, or soon has a digit or a capital.
    rf"|(?:{_any(_WORDLIKE)})(?:(?=[a-z]{{0,12}}[A-Z0-9])[A-Za-z0-9]{{9}}|[A-Za-z0-9]{{20}})[\w.-]*+"
    r"|(?:AKIA|ASIA|ABIA|ACCA|AROA|AIDA|AGPA|ANPA|LTAI|AKID)[A-Za-z0-9]{10,}+"
    r"|(?:AC|SK)[0-9a-f]{32}|AIza[\w-]{10,}+|eyJ[\w-]{8,}+(?:\.[\w-]*+){0,4}|\d{8,10}:AA[\w-]{30,}+)"
)
_LONG_WORD = r"[A-Za-z0-9+/_.~%-]{20,}+=*"
_HEX = r"(?<![0-9A-Za-z])(?:[0-9a-f]{32,}+|[0-9A-F]{32,}+)(?![0-9A-Za-z])"
_BASE64 = r"[A-Za-z0-9+_-][A-Za-z0-9+/_-]{39,}+={0,2}"
_MIN_CHARS, _MIN_CHARS_OF_TWO_KINDS, _MIN_CHARS_IN_PATH = 20, 24, 32
_MAX_CHARS = 4_000
"""What is longer is judged by its beginning."""
_RANDOM_CHANGES = 0.30
"""Of chance, two thirds of the letters differ in kind from the one before; of a name, one third or less."""


def hide_forms(text: str) -> str:
    """Return a text without keys of known services and without long words that are made by chance."""
    return re.sub(_LONG_WORD, _by_chance, re.sub(_PREFIXED, HIDDEN, text))


def _by_chance(match: re.Match[str]) -> str:
    token = match[0]
    if "/" not in token:
        token = re.sub(_HEX, HIDDEN, token)
        return "".join(HIDDEN if _is_random(piece, _MIN_CHARS) else piece for piece in re.split(r"([.%~])", token))
    if re.fullmatch(_BASE64, token) and _is_random(re.sub("[/+]", "", token), _MIN_CHARS_IN_PATH, changes=0.2):
        return HIDDEN
    *folders, name = token.split("/")
    parts = [*folders, name] if "." not in name else folders
    hidden = [HIDDEN if _is_random(part, _MIN_CHARS_IN_PATH) else part for part in parts]
    return "/".join([*hidden, name] if "." in name else hidden)


def _is_random(text: str, min_chars: int, changes: float = _RANDOM_CHANGES) -> bool:
    """True if capitals, small letters and digits follow each other as they do in no name."""
    text = text[:_MAX_CHARS]
    kinds = ["A" if c.isupper() else "a" if c.islower() else "0" for c in text if c.isalnum()]
    if len(kinds) < min_chars:
        return False
    changed = sum(a != b for a, b in pairwise(kinds)) / len(kinds)
    runs = re.findall(r"[A-Z][a-z]{2,}|[a-z]{3,}", text)
    in_words = sum(len(run) for run in runs if _can_be_spoken(run.lower())) / len(kinds)
    marks = text.count("-") + text.count("_")
    if len(set(kinds)) == 3:
        return changed > (changes if marks < 3 else 0.36) and in_words < 0.5
    # Names are made of two kinds of letters, too, and hashes in paths: hide what is long and has no mark in it.
    is_long = len(kinds) >= _MIN_CHARS_OF_TWO_KINDS and min_chars < _MIN_CHARS_IN_PATH
    return is_long and not marks and changed > changes and in_words < 0.3


def _can_be_spoken(run: str) -> bool:
    consonants = re.split("[aeiouy]", run)
    return 0.2 <= (len(consonants) - 1) / len(run) <= 0.75 and max(map(len, consonants)) <= 3


# -- commands ------------------------------------------------------------------------------------------------------

_TABLE = """
    sshpass mysql mysqldump mysqladmin mysqlimport mariadb mariadb-dump 7z 7za rar mongo mongosh mongodump : -p
    mongorestore mongoexport mongoimport docker podman nerdctl buildah helm oras twine az cqlsh beeline : -p
    ncftp ncftpget ncftpput rabbitmqadmin snowsql trino presto impala-shell kinit pscp-ng : -p
    mysqladmin : password
    curl http https xh : -u --user -U --proxy-user --oauth2-bearer -b --cookie -a --auth --tlspassword --pass --netrc
    skopeo crane : --creds --src-creds --dest-creds -p
    sqlcmd bcp isql zip unzip ipmitool : -P
    redis-cli keydb-cli valkey-cli : -a --pass
    ldapsearch ldapadd ldapmodify ldapdelete ldapwhoami ldappasswd : -w -s
    smbclient rpcclient smbmap mount.cifs : -U -p
    lftp : -u
    plink pscp psftp : -pw
    openssl : -k -K -pass -passin -passout -password
    etcdctl : --user
    influx doctl : -t --token
    isql-fb fbsql dbeaver : -pass
    wandb vault comet kaggle openai neptune hf huggingface-cli clearml replicate railway snyk : login
    ngrok : authtoken add-authtoken
    heroku flyctl : auth:token
    gh glab : --with-token
    npm yarn pnpm htpasswd mc aws rclone dvc gsutil poetry :
"""
"""Programs, and the options and words after which they are given a secret."""
_SECRET_AFTER: dict[str, set[str]] = {}
for _line in _TABLE.strip().splitlines():
    for _tool in _line.partition(" :")[0].split():
        _SECRET_AFTER.setdefault(_tool, set()).update(_line.partition(" :")[2].split())

_SECRET_POSITIONALS = {"htpasswd": range(2, 3), "smbclient": range(1, 2), "mc": range(4, 6)}
"""Which of the words that are no options are secrets; for the last two, if one before is an address."""
_OTHER_P = word_set(
    """srun sbatch salloc squeue sinfo scontrol ssh scp sftp psql pg_dump pg_restore createdb dropdb mkdir cp mv install
    pytest py.test nc ncat nmap tar rsync ps pgrep kill top lsof patch perl ruby cmake ninja bazel cargo nvidia-smi
    tmux screen torchrun accelerate deepspeed mpirun jupyter tensorboard uvicorn gunicorn streamlit flask git pip
    conda mamba kubectl"""
)
"""Programs of which ``-p`` is a partition, a port, or a switch."""
_ONLY_PASSWORDS = ("mongo", "mysql", "maria", "sshpass", "7z", "zip", "unzip")
"""Programs, by their beginning, of which ``-p`` and ``-P`` are a password even if it is a number."""
_PORTS = r"[\d.:/-]+(?:tcp|udp)?"
_BARE_NAME = (
    r"(?i)[\w.:/-]*(?:_|\b)(?:secret_access_key|session_token|auth_?token|api_?key|secret_?key|access_?token|"
    r"requirepass)"
)
_PLAIN = r"[a-z_-]{1,24}|[\d_]{1,6}|[./~].*"
_MIXED = r"(?=.*\d)(?=.*[A-Za-z])[^/.]{3,}"
_TOOL = (
    rf"(?<![\w-])(?:{'|'.join(map(re.escape, sorted(_SECRET_AFTER, key=len, reverse=True)))})(?=[\s'\"])|(?<![\w-])-p"
)


class CommandReader:
    """Reads a command line from left to right, and finds what of each word is a secret by its position.

    Args:
        is_text: the words are those of a text that a command line may be a part of: names of options are judged
            elsewhere, and only what known programs are given is a secret by its position.
    """

    def __init__(self, *, is_text: bool = False) -> None:
        self._is_text = is_text
        self._tools: list[str] = []
        self._positionals: list[str] = []
        """Words since the last program that are no options."""
        self._option = ""
        """The option or name whose value is next."""

    @staticmethod
    def finds_a_tool(text: str) -> bool:
        """True if a text may name a program that is given secrets in an unusual form."""
        return re.search(_TOOL, text) is not None

    def hidden_from(self, word: str) -> int | None:
        """Return from which character on the next word is a secret; None if it is none by its position."""
        option, self._option = self._option, ""
        if option and self._is_value(option, word):
            return 0
        if self._is_attached(word):
            return 2
        if self._is_secret_positional(word):
            self._positionals.append(word)
            return 0
        if self._takes_secret(word):
            self._option = word
        elif word.startswith("-") and not option.startswith("-"):
            self._option = option  # wandb login --relogin X
        name = word.rpartition("/")[2].lower()
        if (name in _SECRET_AFTER or name in _OTHER_P) and name not in self._tools:
            self._tools.append(name)
            self._positionals.clear()
        elif not word.startswith("-") and len(self._positionals) < 8:
            self._positionals.append(word)
        return None

    def _is_value(self, option: str, word: str) -> bool:
        if not word or re.fullmatch(r"--[a-z][a-z0-9-]+(?:=.*)?|-.", word, re.DOTALL):
            return False
        if not option.startswith("-"):
            return not word.startswith("-")
        if option in ("-p", "-P") and not self._has_only_passwords():
            is_likely = self._is_known(option) or not self._is_text or re.fullmatch(_MIXED, word)
            return bool(is_likely) and not re.fullmatch(_PORTS, word)
        if option in ("-u", "-U", "--user", "--proxy-user"):  # often a user alone, or a user and a group
            return any(mark in word for mark in ":%,") and not re.fullmatch(_PORTS, word) and not word.startswith("$")
        if option in ("-b", "--cookie"):
            return "=" in word
        if secrecy_of(option) is Secrecy.WEAK and not option.lower().endswith(("token", "auth", "pass")):
            return not re.fullmatch(_PLAIN, word)
        return True

    def _has_only_passwords(self) -> bool:
        return any(tool.startswith(_ONLY_PASSWORDS) for tool in self._tools)

    def _is_known(self, option: str) -> bool:
        return any(option in _SECRET_AFTER.get(tool, ()) for tool in self._tools)

    def _takes_secret(self, word: str) -> bool:
        """True if the next word is a secret: ``-p``, ``--token``, ``aws configure set aws_secret_access_key X``."""
        if "=" in word or len(word) >= 120:
            return False
        if word == "--user" or self._is_known(word):
            return True
        if word == "-p":
            return not any(tool in _OTHER_P for tool in self._tools)
        if word.startswith("-"):
            return len(word) > 2 and not self._is_text and secrecy_of(word) is not Secrecy.NONE
        if self._is_text and not self._tools:
            return False
        is_word = not self._is_text and word.lower() in ("password", "passwd", "passphrase")
        return is_word or bool(re.fullmatch(_BARE_NAME, word))

    def _is_attached(self, word: str) -> bool:
        """True for an option of one letter together with its secret: ``-pX``."""
        flag, value = word[:2], word[2:]
        if len(word) < 4 or flag not in ("-p", "-a", "-P", "-u"):
            return False
        is_port = flag == "-p" and not self._has_only_passwords() and bool(re.fullmatch(_PORTS, value))
        if self._is_known(flag):
            return ":" in word if flag == "-u" else not is_port
        # In doubt: an unknown program, and no option looks like this.
        if flag != "-p" or "=" in word or any(tool in _OTHER_P for tool in self._tools):
            return False
        return bool(re.search(r"[0-9A-Z!@#$%^&*]", value)) and not is_port and "." not in word

    def _is_secret_positional(self, word: str) -> bool:
        place = len(self._positionals)
        if word.startswith("-") or not any(place in _SECRET_POSITIONALS.get(tool, ()) for tool in self._tools):
            return False
        return "htpasswd" in self._tools or any("//" in other for other in self._positionals)
