"""Secrets in command lines, texts, errors, logs and kept evidence: none is shown, and little else is hidden."""

from __future__ import annotations

import ast
import io
import json
import logging
import pickle
import random
import re
import shlex
import string
import time
from pathlib import Path

import pytest
from secrets_corpus import HARMLESS_LINES, HARMLESS_WORDS, SECRETS

import antifreeze as af
from antifreeze.core import HIDDEN, get_logger, one_line, redact, redact_command
from antifreeze.diagnosis import Frame
from antifreeze.doctor.job._fix import Fix
from antifreeze.doctor.job._job_report import keep
from antifreeze.doctor.job._observation import Observation, Process, Snapshot, Stack, Thread

LINES = SECRETS.strip().splitlines()
HARMLESS = HARMLESS_LINES.strip().splitlines()
WORDS = HARMLESS_WORDS.split()
ROOT = Path(__file__).parents[2]
MAX_HIDDEN_SHARE = 0.02


def split(line: str) -> tuple[str, list[str]]:
    """Return a line of the corpus without its marks, and the canaries in it."""
    return re.sub("[«»]", "", line), re.findall("«(.*?)»", line)


def shown_forms(line: str) -> dict[str, str]:
    """Return what is shown of a line, in each form in which it can reach the redactor."""
    if not line.startswith("$ "):
        return {"text": redact(line), "repr": redact(repr(line)), "one line": one_line(f"it failed: {line}")}
    words = shlex.split(line[2:])
    return {
        "words": " ".join(redact_command(words)),
        "text": redact(line[2:]),
        "list": redact(f"Command '{words}' returned non-zero exit status 1."),
    }


@pytest.mark.parametrize("line", LINES)
def test_no_canary_is_shown(line: str) -> None:
    """Whichever way a line comes: as words, as one text, or as Python prints a list."""
    plain, canaries = split(line)

    leaks = {form: text for form, text in shown_forms(plain).items() if any(canary in text for canary in canaries)}
    assert leaks == {}


def test_the_corpus_is_large_enough() -> None:
    """The bars are shares of it."""
    assert len([line for line in LINES if "«" in line]) >= 150
    assert len(WORDS) + sum(len(line.split()) for line in HARMLESS) >= 600


def test_the_test_for_leaks_can_fail() -> None:
    """A canary in a place where nothing gives it away is found by the same check."""
    plain, canaries = split("the weather is «fine» today")

    assert canaries[0] in shown_forms(plain)["text"]


def test_harmless_words_stay() -> None:
    """At most two of a hundred words are hidden, in command lines and texts together."""
    hidden = [word for word in WORDS if redact(word) != word or redact_command([word]) != (word,)]
    total = len(WORDS)
    for line in HARMLESS:
        words = line.split(" ") if " -c from" not in line else ["python", "-c", line.removeprefix("python -c ")]
        shown = redact_command(words)
        hidden += [word for word, other in zip(words, shown, strict=False) if word != other]
        hidden += [line] * (redact(line) != line)
        total += len(words)

    assert len(hidden) / total <= MAX_HIDDEN_SHARE, hidden


@pytest.mark.parametrize("line", [line for line in HARMLESS if "column" in line or "token" in line])
def test_names_of_data_are_never_hidden(line: str) -> None:
    """An error about the column ``token_ids`` is of no use without that name."""
    assert HIDDEN not in redact(line)


def texts_of_the_project() -> list[str]:
    """Return every text in the source that is long enough to be a message, a hint or a docstring."""
    paths = sorted((ROOT / "src/antifreeze").rglob("*.py"))
    # The redactor's own modules are full of names and places of secrets.
    trees = [ast.parse(path.read_text()) for path in paths if not path.name.startswith(("_secrets", "_redaction"))]
    constants = [node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return [value for value in constants if isinstance(value, str) and " " in value]


def test_what_this_project_says_stays_readable() -> None:
    """Messages, hints and docstrings: thousands of sentences about keys, tokens, sessions and workers."""
    said = [text for text in texts_of_the_project() if "\\" not in text]

    assert len(said) > 3000
    assert [text for text in said if redact(text) != text] == []


def test_the_documentation_stays_readable() -> None:
    """Every word of it."""
    words = [word for path in sorted((ROOT / "docs").rglob("*.md")) for word in path.read_text().split()]
    hidden = [word for word in words if redact(word) != word]

    assert len(words) > 5000
    assert len(hidden) / len(words) < 0.001, hidden


@pytest.mark.parametrize(
    "form", ["--key {}", "token={}", "password: {}", "api_key={}", '{{"secret": "{}"}}', "https://me:{}@host/x", "-p{}"]
)
def test_redacting_twice_changes_nothing(form: str) -> None:
    """A text that was redacted may become a part of another one."""
    once = redact(form.format("hunter2Zx"))

    assert redact(once) == once


SHAPES = [
    *("a", "aB3", "=", "a=", "token=", "password=", "password:", "://", "https://a:", "https://a:b@", "@", "a:b@"),
    *(
        "-----BEGIN PRIVATE KEY-----",
        "-----BEGIN ",
        "--",
        "--password ",
        "-p ",
        "-pX1 ",
        "'",
        "['a', ",
        "['-p', 'x1'], ",
    ),
    *('"', "\\", '\\"', "$", "$6$", "<<<", "| ", "echo a ", "echo a | ", "bearer ", "Authorization: ", "x-", "x-a"),
    *(
        "hf_",
        "sk-",
        "eyJ",
        "eyJaaaaaaaa.",
        "AKIA",
        "0123456789abcdef",
        "/",
        "a/",
        "aB3/",
        "%",
        "?a=",
        "&token=",
        "&",
        ";",
    ),
    *("a;b=", "password=;", "key-", ".", "~", "mysql -p", "curl -u ", "login('", "password '", "identified by "),
    *(
        "login a password ",
        "a:12:a:a:",
        "[",
        "{",
        "(",
        "<",
        "1//0",
        "co-",
        "a-",
        "a.",
        "a_",
        "tok_",
        "::",
        " ",
        "\n",
        "\t",
    ),
    *("password='", 'token=\\"', "key: ", "'key': ", "-" * 30, "[hidden]", "x" * 19 + " ", "\x1b", "\u202e", "\ud800"),
]


@pytest.mark.parametrize("shape", SHAPES, ids=repr)
def test_hostile_texts_take_linear_time(shape: str) -> None:
    """Four times as much text takes at most about four times as long: no pattern backtracks over all of it."""
    times = {}
    for size in (20_000, 80_000):
        text = (shape * (size // len(shape) + 1))[:size]
        begin = time.process_time()
        redact(text)
        times[size] = time.process_time() - begin

    assert times[80_000] < 12 * times[20_000] + 0.05


@pytest.mark.soak
@pytest.mark.parametrize("shape", SHAPES, ids=repr)
def test_a_megabyte_is_redacted_in_seconds(shape: str) -> None:
    """Of every suspicious shape."""
    text = (shape * (1_000_000 // len(shape) + 1))[:1_000_000]
    begin = time.process_time()
    redact(text)

    assert time.process_time() - begin < 15


def test_an_ordinary_error_costs_microseconds() -> None:
    """Samples that are skipped by the thousand each make one."""
    begin = time.process_time()
    for _ in range(200):
        af.CorruptFile("data/train/part-3.parquet has a footer that does not parse", hint="copy it again", file="x")

    assert time.process_time() - begin < 0.2


# -- where secrets can come out ------------------------------------------------------------------------------------

HUSH = "hunter2Zx"
URL = f"s3://key:{HUSH}@bucket/train"


def test_an_address_with_credentials_is_not_in_an_error() -> None:
    """Not in its text, its repr, its facts, or its pickle."""
    with pytest.raises(af.ConfigError) as caught:
        af.StreamingDataset(URL)
    error = caught.value

    assert "s3://" in str(error)
    assert HUSH not in str(error)
    assert HUSH not in repr(error)
    assert HUSH not in repr(error.facts)
    assert HUSH.encode() not in pickle.dumps(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301


def test_user_errors_are_redacted_and_the_original_is_untouched() -> None:
    """The text of ours hides it; the exception of the user stays as it was raised, as the cause."""

    class Set:
        def __len__(self) -> int:
            return 2

        def __getitem__(self, i: int) -> int:
            raise OSError(f"cannot open https://example.com/a?token={HUSH}")

    with pytest.raises(af.UserCodeError) as caught:
        list(af.DataLoader(Set(), num_workers=0))

    assert "https://example.com/a" in str(caught.value)
    assert HUSH not in str(caught.value)
    assert HUSH in str(caught.value.__cause__)


def test_log_lines_are_redacted() -> None:
    """Arguments and tracebacks of the package's logger."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logger = get_logger()
    logger.addHandler(handler)
    try:
        logger.warning("antifreeze: %s cannot be read", URL)
        failure = OSError(f"password={HUSH}")
        logger.error("antifreeze: it failed", exc_info=failure)
    finally:
        logger.removeHandler(handler)

    assert "bucket/train cannot be read" in stream.getvalue()
    assert "OSError" in stream.getvalue()
    assert HUSH not in stream.getvalue()


def test_states_that_differ_are_redacted() -> None:
    """A state may hold how a store was opened."""
    with pytest.raises(af.StateMismatch) as caught:
        raise af.StateMismatch(f"the state was saved with storage_options={{'secret': '{HUSH}'}}, this loader has {{}}")

    assert HUSH not in str(caught.value)


def test_kept_evidence_is_redacted(tmp_path: Path) -> None:
    """Wherever it was seen: in names of threads, folders, paths, lines of source, and errors."""
    frame = Frame(file=f"/data/https:/me:{HUSH}@host/x.py", line=1, function="f")
    process = Process(
        pid=1,
        name=f"token={HUSH}",
        folder=f"/run/password={HUSH}",
        command=("python", "--token", HIDDEN),
        threads=(Thread(tid=1, name=f"token={HUSH}", target=f"/x?token={HUSH}", path=f"/x/api_key={HUSH}"),),
        stacks=(Stack(tid=1, name=f"password={HUSH}", frames=(frame,)),),
        stacks_error=f"postgres://me:{HUSH}@db/x",
    )
    seen = Observation(root=1, snapshots=(Snapshot(at_s=0.0, processes=(process,)),))
    fix = Fix(words="do", diff=f'--- a\n+++ b\n-login(token="{HUSH}")\n', command=f"curl -u me:{HUSH} x")
    keep(tmp_path / "kept", seen, (fix,), "")

    for path in (tmp_path / "kept").iterdir():
        assert HUSH not in path.read_text(), path.name
    assert json.loads((tmp_path / "kept/seen.json").read_text())["root"] == 1


# -- made at random ------------------------------------------------------------------------------------------------

TEMPLATES = [
    "{name}={value}",
    "--{name}={value}",
    "export {name}={value}",
    '{{"{name}": "{value}", "lr": 1}}',
    "{{'{name}': '{value}'}}",
    "host=db {name}={value} port=5432",
    "Server=db;{name}={value};Encrypt=yes",
    "https://example.com/x?a=1&{name}={value}&b=2",
    "--env={name}={value}",
    "{name}: {value}",
    "f({name}='{value}', x=1)",
    "conf.d.{name}={value}",
]
NAMES = [
    "password",
    "PASSWORD",
    "db_password",
    "DB_PASSWORD",
    "dbPassword",
    "api_key",
    "API_KEY",
    "apiKey",
    "X-Api-Key",
    "secret",
    "client_secret",
    "clientSecret",
    "secret_key",
    "SECRET_KEY",
    "aws_secret_access_key",
    "AWS_SECRET_ACCESS_KEY",
    "hf_token",
    "HF_TOKEN",
    "hfToken",
    "access_token",
    "accessToken",
    "auth_token",
    "refresh_token",
    "github_token",
    "WANDB_API_KEY",
    "OPENAI_API_KEY",
    "private_key",
    "AccountKey",
    "SharedAccessKey",
    "passphrase",
    "Pwd",
    "pwd",
    "PGPASSWORD",
    "MYSQL_PWD",
    "bearer_token",
    "session_token",
    "credentials",
    "smtp_password",
    "redis_password",
    "encryption_key",
]
ALPHABETS = [
    string.ascii_letters + string.digits,
    string.ascii_letters + string.digits + "!#%^*_+-.~",
    string.hexdigits,
]


def generated(seed: int) -> tuple[str, str]:
    """Return a line with a secret, and the secret."""
    rng = random.Random(seed)  # noqa: S311  the same in every run
    value = "".join(rng.choice(rng.choice(ALPHABETS)) for _ in range(rng.randrange(8, 40)))
    value = "q" + value + "7Z"  # neither a number nor nothing
    return rng.choice(TEMPLATES).format(name=rng.choice(NAMES), value=value), value


@pytest.mark.parametrize("part", range(4))
def test_generated_assignments_are_hidden(part: int) -> None:
    """Names, separators and values that nobody has written down here."""
    for seed in range(part * 100, part * 100 + 100):
        line, value = generated(seed)
        assert value not in redact(line), line
        assert value not in " ".join(redact_command([line])), line


@pytest.mark.soak
def test_tens_of_thousands_of_generated_assignments_are_hidden() -> None:
    """The same, for hours of other people's imagination."""
    leaks = [line for line, value in map(generated, range(40_000)) if value in redact(line)]

    assert leaks == []


def chance(seed: int, length: int) -> str:
    """Return letters and digits by chance, of three kinds."""
    rng = random.Random(seed)  # noqa: S311  the same in every run
    while True:
        text = "".join(rng.choices(string.ascii_letters + string.digits, k=length))
        if any(map(str.isupper, text)) and any(map(str.islower, text)) and any(map(str.isdigit, text)):
            return text


@pytest.mark.parametrize("length", [24, 32, 40, 64])
def test_most_words_by_chance_are_hidden(length: int) -> None:
    """Nobody names them; a few look like names."""
    shown = [word for seed in range(300) if (word := chance(seed, length)) in redact(f"the key is {word} here")]

    assert len(shown) / 300 <= {24: 0.03, 32: 0.01, 40: 0.0, 64: 0.0}[length], shown
