"""Which names announce a secret: ``HF_TOKEN``, ``--db-password``, ``AccountKey``; and which only look like it.

A name is taken apart into its words (``hfToken`` and ``HF_TOKEN`` have the same two), and judged by its last word and
the one before it. ``token_ids``, ``max_tokens`` and ``pad_token`` are names of data. In doubt it names a secret.
"""

from __future__ import annotations

import enum
import functools
from itertools import pairwise

from antifreeze.core._pattern import Pattern

_WORD = Pattern(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_MAX_NAME = 200


class Secrecy(enum.IntEnum):
    """What a name implies about the value that follows it."""

    NONE = 0
    """Nothing: the value is shown, unless it looks like a secret by itself."""
    WEAK = 1
    """It is often a secret and often data: ``key``, ``token``. Values that are words, numbers or types are shown."""
    STRONG = 2
    """It is a secret whatever it looks like."""


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_STRONG = _set(
    """password passwd passphrase passcode pwd pw userpwd userpass secret secrets apikey apitoken credential
    credentials cred creds authtoken authkey accesstoken accesskey secretkey privatekey otp totp mfa jwt sas
    sastoken cookie cookies sessionid csrf csrftoken xsrf authorization bearer dsn webhook passin passout psk
    wpa requirepass masterauth storepass keypass dbpass smtppass ftppass"""
)
_ENDS = ("password", "passwd", "passphrase", "secret", "apikey", "accesskey", "secretkey", "authtoken", "token", "pwd")
_WEAK = _set("token key auth session signature sig pass salt hmac pin pat")
_QUERY = _set("code sid sign h hash policy")
"""Weak names are strong in the query of an address, and so are these."""
_MODIFIERS = _set("value val str string raw b prod dev staging new old current plain cleartext text")
_HARMLESS_ENDS = _set(
    """file files filename path paths dir folder length len size count num number ids type types column columns col
    cols dim dims name names field fields policy min max required enabled disabled manager provider expiry ttl
    url uri endpoint version prompt stdin helper timeout limit index mask list embedding embeddings class cls
    func fn function mode format rotation age interval rate weight weights loss model models store backend map
    order"""
)
_SERVICES = _set(
    """api access secret private account shared storage master encryption encrypt signing sign auth license ssh rsa
    client service consumer app application admin root wandb openai anthropic cohere mistral replicate hf
    huggingface hub comet neptune clearml mlflow aws azure gcp google github gitlab git gh slack discord
    telegram bot stripe twilio sendgrid pypi npm docker registry datadog dd sentry kaggle bearer refresh id
    session security oauth personal deploy pat jwt x sas login user db database redis mongo mysql postgres pg
    vault consul nomad cloudflare heroku digitalocean tailscale ngrok vpn wifi smtp mail webhook csrf xsrf
    access_token lakefs minio r2 wasabi b2 snowflake databricks"""
)
_DATA = _set(
    """image images text sort primary foreign cache dict label labels data caption join partition group order map
    json column feature features target input output audio video hot public config state sample index row
    bucket object value url weight loss metric pad eos bos unk mask sep cls special next prev start end first
    last begin new per max min num n by lookup name field batch source src dst tgt question answer prompt
    context query head no each every any which of with the same unknown missing unexpected duplicate invalid
    registry_key shuffle color bias soft hard prefix suffix current attention"""
)
_ALONE = _set(
    "wandb openai anthropic hf huggingface comet neptune github gitlab replicate npm pypi sendgrid stripe twilio"
)
"""Names of services: ``--wandb=X`` may be a switch or a key."""


_KEYS = frozenset((word, "key") for word in ("api", "access", "account", "secret", "private"))
"""At any position: ``access_key_id``, ``fs.azure.account.key.name``."""


@functools.lru_cache(maxsize=2048)
def secrecy_of(name: str) -> Secrecy:
    """Return what a name implies about the value after it: ``--db-password`` and ``DB_PASSWORD`` are equivalent."""
    words = _words(name)
    while len(words) > 1 and (words[-1].isdecimal() or words[-1] in _MODIFIERS):
        words.pop()
    if not words:
        return Secrecy.NONE
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last in _HARMLESS_ENDS:
        return Secrecy.NONE
    if any(word in _STRONG for word in words) or last == "pin" or _KEYS & set(pairwise(words)):
        return Secrecy.STRONG
    if last in ("key", "token"):
        return _of_key(before, len(words))
    if last in _WEAK:
        return Secrecy.NONE if before in _DATA else Secrecy.WEAK
    if last.endswith(_ENDS) and last not in _WEAK:
        return Secrecy.STRONG
    return Secrecy.WEAK if last in _ALONE and len(words) == 1 else Secrecy.NONE


def _of_key(before: str, count: int) -> Secrecy:
    if before in _SERVICES:
        return Secrecy.STRONG
    return Secrecy.NONE if count > 1 and before in _DATA else Secrecy.WEAK


def is_secret_in_query(name: str) -> bool:
    """True if a parameter of an address holds a secret: there even ``key`` and ``code`` do."""
    words = _words(name)
    return secrecy_of(name) is not Secrecy.NONE or bool(words and words[-1] in _QUERY)


def _words(name: str) -> list[str]:
    return [found[0].lower() for found in _WORD.finditer(name[-_MAX_NAME:])]
