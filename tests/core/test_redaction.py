"""What of a command line and of a text may be shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antifreeze.core import HIDDEN, redact, redact_command

HUSH = "hunter2Zx"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"


@pytest.mark.parametrize(
    "words",
    [
        ["--password", HUSH],
        ["--db-password", HUSH],
        ["--token", HUSH],
        ["--hf-token", HUSH],
        ["--hfToken", HUSH],
        ["--hf_token", HUSH],
        ["--api-key", HUSH],
        ["--apiKey", HUSH],
        ["--wandb.api_key", HUSH],
        ["--secret", HUSH],
        ["--client_secret", HUSH],
        ["--aws-secret-access-key", HUSH],
        ["-token", HUSH],
        ["--auth", HUSH],
        ["--credentials", HUSH],
        [f"--password={HUSH}"],
        [f"--wandb-key={HUSH}"],
        [f"--api_key={HUSH}"],
        [f"--hf_token={HUSH}"],
        [f"HF_TOKEN={HUSH}"],
        [f"WANDB_API_KEY={HUSH}"],
        [f"AWS_SECRET_ACCESS_KEY={HUSH}"],
        [f"PGPASSWORD={HUSH}"],
        [f"MYSQL_PWD={HUSH}"],
        [f"password={HUSH}"],
        [f"logger.api_key={HUSH}"],
        [f"+logger.api_key={HUSH}"],
        [f"++logger.token={HUSH}"],
        [f"--env=HF_TOKEN={HUSH}"],
        [f"--env=WANDB_KEY={HUSH}"],
        ["--env", f"HF_TOKEN={HUSH}"],
        [f"--config={{api_key: {HUSH}, lr: 1}}"],
        [f'{{"token": "{HUSH}"}}'],
        [f"postgres://me:{HUSH}@db.example.com/data"],
        [f"--url=https://me:{HUSH}@example.com/data"],
        [f"redis://:{HUSH}@cache:6379"],
        [f"https://example.com/data?token={HUSH}"],
        [f"https://example.com/data?x=1&X-Amz-Signature={HUSH}&y=2"],
        [f"https://account.blob.core.windows.net/data?sv=1&sig={HUSH}"],
        ["--header", f"Authorization: Bearer {HUSH}"],
        ["-H", f"X-Api-Key: {HUSH}"],
        ["python", "-c", f"login('{HUSH}')"],
        ["python", "-uc", f"login('{HUSH}')"],
        ["python", "-W", "ignore", "-c", f"login('{HUSH}')"],
        ["bash", "-lc", f"login {HUSH}"],
    ],
    ids=" ".join,
)
def test_what_looks_like_a_secret_is_hidden(words: list[str]) -> None:
    """By the name that stands before it, or by the place where it stands."""
    shown = " ".join(redact_command(words))

    assert HUSH not in shown
    assert HIDDEN in shown or "..." in shown


@pytest.mark.parametrize(
    "secret",
    [
        "AKIAIOSFODNN7EXAMPLE",
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        "hf_AbCdEfGhIjKlMnOpQrStUvWxYz",
        "ghp_1234567890abcdefghij1234567890abcdef",
        "github_pat_11ABCDEFG0abcdefghijkl",
        "glpat-abcDEF123456ghi",
        "sk-proj-abcdefghijklmnop",
        "xoxb-123456789012-abcdef",
        "AIzaSyA1234567890abcdefghijklmnopq",
        JWT,
        "0123456789abcdef0123456789abcdef01234567",
        "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7aB0cD",
        "Zm9vYmFyQmF6MTIzNDU2Nzg5MEFCQ0RFRkc=",
    ],
)
@pytest.mark.parametrize("form", ["{}", "--x={}", "id={}", "x{{{}}}"])
def test_what_services_give_out_is_hidden_wherever_it_stands(secret: str, form: str) -> None:
    """Nobody says that it is one."""
    if "/" in secret and form != "{}":  # may be a path
        return
    assert secret not in " ".join(redact_command(["train.py", form.format(secret)]))


@pytest.mark.parametrize(
    "line",
    [
        "python train.py --learning-rate 1e-4 --seed 42 --tokenizer bert-base --keys-per-shard 4",
        "python train.py --max-tokens 512 --num-tokens 4096 --max-new-tokens=7 --tokens-per-batch 9",
        "python /data/models--bert/snapshots/86b5e0934494bd15c9632b12f734a8a67f723594/config.json",
        "torchrun --nproc-per-node 8 --rdzv-endpoint localhost:29500 --master_port=29501 train.py --config a/b.yaml",
        "python -m torch.distributed.run --standalone train.py optimizer.lr=1e-3 model.layers=12 +trainer.devices=8",
        "python train.py --author me --name ViT-B-16-laion400m_e32_openai_2024_08_01 --keyframe 3",
        "python train.py -c configs/base.yaml --monkey yes --compass north --passes 3 --authors",
        "python train.py --run-name=Resnet50-imagenet-bs256-lr0001-warmup --data s3://bucket/train/{0000..1023}.tar",
        "python train.py --experiment LlamaFinetune2024BertLargeBaseline --resume checkpoints/epoch_10.pt",
        "python -c from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=6, pipe_handle=9)",
    ],
)
def test_an_ordinary_command_line_stays_readable(line: str) -> None:
    """It is how a person knows the job."""
    words = line.split(" ") if " -c from" not in line else ["python", "-c", line.removeprefix("python -c ")]

    assert " ".join(redact_command(words)) == line


def test_a_flag_without_a_value_hides_nothing_else() -> None:
    """The next flag, and what belongs to it, are shown."""
    assert redact_command(["--token", "--epochs", "3"]) == ("--token", "--epochs", "3")
    assert redact_command(["--password"]) == ("--password",)


def test_what_stands_around_a_secret_is_shown() -> None:
    """The host of an address tells who does not answer."""
    assert redact(f"https://me:{HUSH}@example.com/data") == f"https://{HIDDEN}@example.com/data"
    assert redact(f"https://a.b/c?token={HUSH}&part=2") == f"https://a.b/c?token={HIDDEN}&part=2"
    assert redact(f"--env=HF_TOKEN={HUSH}").startswith("--env=HF_TOKEN=")


def test_long_lines_are_cut() -> None:
    """Nobody reads ten thousand files."""
    assert len(redact_command(["x"] * 1000)) == 41
    assert len(redact_command(["a b " * 1000])[0]) < 250
    assert redact_command(["a=" * 5000])


@given(st.lists(st.text(alphabet="aB3-_=:/@?& .+", max_size=40), max_size=6))
def test_any_command_line_can_be_shown(words: list[str]) -> None:
    """One word for each, and nothing is cleaned twice."""
    shown = redact_command(words)

    assert len(shown) == len(words)
    assert len(redact_command(shown)) == len(shown)
