"""Command lines word by word: which word is the password of which program.

Most programs name their secrets (``--password X``), and the name reveals them. Some do not: ``mysql -pX``,
``curl -u me:X``, ``wandb login X``. These are listed here. Of a program that is not listed, ``-p X`` is taken for a
password unless X is a number or a port, or the program is known to mean something else by it.
"""

from __future__ import annotations

import enum
import re

from antifreeze.core._pattern import Pattern
from antifreeze.core._secret_names import Secrecy, secrecy_of


class WordKind(enum.Enum):
    """What a word of a command line is."""

    SHOWN = enum.auto()
    """Not a secret by its position; it may still contain one."""
    SECRET = enum.auto()
    ATTACHED = enum.auto()
    """An option of one letter together with its secret: ``-pX``."""


def _table(text: str) -> dict[str, frozenset[str]]:
    rows = (line.partition(":")[::2] for line in text.strip().splitlines())
    return {tool: frozenset(words.split()) for tools, words in rows for tool in tools.split()}


_SEPARATE = _table(
    """
    sshpass mysql mysqldump mysqladmin mariadb mongo mongosh mongodump mongorestore mongoexport mongoimport : -p
    docker podman nerdctl buildah helm oras twine az cqlsh beeline ncftp ncftpget ncftpput 7z 7za rar : -p
    rabbitmqadmin snowsql trino presto impala-shell kinit pscp-ng : -p
    curl http https xh : -u --user -U --proxy-user --oauth2-bearer -b --cookie -a --auth --tlspassword --pass --netrc
    wget aria2c : --password --http-password --ftp-password --proxy-password --http-passwd --ftp-passwd
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
    """
)
"""Options whose value is a secret, by program."""
_ATTACHED = _table(
    """
    mysql mysqldump mysqladmin mysqlimport mariadb mariadb-dump sshpass 7z 7za rar twine mongo mongosh cqlsh : -p
    redis-cli : -a
    curl : -u
    zip unzip sqlcmd : -P
    """
)
_AFTER = _table(
    """
    wandb vault comet kaggle openai neptune hf huggingface-cli clearml replicate railway snyk : login
    ngrok : authtoken add-authtoken
    mysqladmin : password
    npm yarn pnpm : _authtoken
    heroku flyctl : auth:token
    gh glab : --with-token
    """
)
"""The word after one of these is a secret, unless it is an option."""
_OTHERS = frozenset({"htpasswd", "mc", "xfreerdp", "aws", "rclone", "dvc", "gsutil", "poetry"})
_TOOLS = frozenset(_SEPARATE) | frozenset(_ATTACHED) | frozenset(_AFTER) | _OTHERS
_OTHER_P = _table(
    """
    srun sbatch salloc squeue sinfo scontrol ssh scp sftp psql pg_dump pg_restore createdb dropdb mkdir cp mv : -p
    install : -p
    pytest py.test nc ncat nmap tar rsync ps pgrep kill top lsof patch perl ruby cmake ninja bazel cargo nvidia-smi : -p
    tmux screen torchrun accelerate deepspeed mpirun jupyter tensorboard uvicorn gunicorn streamlit flask git pip : -p
    conda mamba kubectl : -p
    """
)
"""Programs of which ``-p`` is a partition, a port, or a switch."""
_PORTS = Pattern(r"[\d.:/-]+(?:tcp|udp)?\Z")
_OPTION = Pattern(r"--[a-z][a-z0-9-]+(?:=.*)?\Z", re.DOTALL)
_BARE_NAME = Pattern(
    r"[\w.:/-]*(?:_|\b)(?:secret_access_key|session_token|auth_?token|api_?key|secret_?key|access_?token|requirepass)\Z",
    re.IGNORECASE,
)
_BARE_WORDS = ("password", "passwd", "passphrase")
_TOOL = Pattern(rf"(?<![\w-])(?:{'|'.join(map(re.escape, sorted(_TOOLS, key=len, reverse=True)))})(?=[\s'\"])")
_OTHER_TOOL = Pattern(rf"(?<![\w-])(?:{'|'.join(map(re.escape, sorted(_OTHER_P, key=len, reverse=True)))})\s")
_NOT_A_WORD = Pattern(r"[0-9A-Z!@#$%^&*]")
_PLAIN = Pattern(r"[a-z_-]{1,24}\Z|[\d_]{1,6}\Z|[./~]")
_MAX_POSITIONALS = 8


class CommandReader:
    """Reads a command line from left to right, and classifies each word.

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
    def knows_a_tool(text: str) -> bool:
        """True if a text names a program that is given secrets in an unusual form."""
        return _TOOL.search(text) is not None

    @staticmethod
    def knows_another_p(text: str) -> bool:
        """True if a text names a program of which ``-p`` is no password."""
        return _OTHER_TOOL.search(text) is not None

    def read(self, word: str) -> WordKind:
        """Return what the next word is."""
        option, self._option = self._option, ""
        kind = WordKind.SHOWN
        if option and self._is_value(option, word):
            kind = WordKind.SECRET
        elif self._is_attached(word):
            kind = WordKind.ATTACHED
        elif word.startswith("-"):
            self._option = word if self._takes_secret(word) else ""
        elif self._is_positional(word):
            kind = WordKind.SECRET
        elif self._names_secret(word):
            self._option = word
        self._remember(word)
        return kind

    def _names_secret(self, word: str) -> bool:
        """True if a word that is no option names the secret after it: ``aws configure set aws_secret_access_key X``."""
        if "=" in word or len(word) >= 120 or (self._is_text and not self._tools):
            return False
        return bool(_BARE_NAME.match(word)) or (not self._is_text and word.lower() in _BARE_WORDS)

    def _remember(self, word: str) -> None:
        name = word.rpartition("/")[2].lower()
        is_tool = name in _TOOLS or name in _OTHER_P
        if is_tool and name not in self._tools:
            self._tools.append(name)
            self._positionals.clear()
        elif not word.startswith("-"):
            self._positionals.append(word)
            del self._positionals[:-_MAX_POSITIONALS]

    def _is_value(self, option: str, word: str) -> bool:
        if not word or _OPTION.match(word) or (word.startswith("-") and len(word) == 2):
            return False
        if option in ("-p", "-P") and not self._has_only_passwords():
            return not _PORTS.match(word)
        if option in ("-u", "-U", "--user", "--proxy-user"):  # often a user alone, or a user and a group
            return any(mark in word for mark in ":%,") and not _PORTS.match(word) and not word.startswith("$")
        if option in ("-b", "--cookie"):
            return "=" in word
        if secrecy_of(option) is Secrecy.WEAK and not option.lower().endswith(("token", "auth", "pass")):
            return not _PLAIN.match(word)
        return True

    def _has_only_passwords(self) -> bool:
        return any(
            tool.startswith(("mongo", "mysql", "maria", "sshpass", "7z", "zip", "unzip")) for tool in self._tools
        )

    def _is_attached(self, word: str) -> bool:
        flag = word[:2]
        if len(word) < 4 or flag not in ("-p", "-a", "-P", "-u"):
            return False
        if any(flag in _ATTACHED.get(tool, ()) for tool in self._tools):
            return flag != "-u" or ":" in word
        # In doubt: an unknown program, and no option looks like this.
        if flag != "-p" or "=" in word or any(tool in _OTHER_P for tool in self._tools):
            return False
        return bool(_NOT_A_WORD.search(word[2:])) and not _PORTS.match(word[2:]) and "." not in word

    def _takes_secret(self, word: str) -> bool:
        if "=" in word:
            return False
        if any(word in _SEPARATE.get(tool, ()) for tool in self._tools):
            return True
        if word == "--user":
            return True
        if word == "-p":
            return not self._is_text and not any(tool in _OTHER_P for tool in self._tools)
        return len(word) > 2 and not self._is_text and secrecy_of(word) is not Secrecy.NONE

    def _is_positional(self, word: str) -> bool:
        """True if a word is a secret by its number among those that are no options."""
        last = self._positionals[-1] if self._positionals else ""
        tail = last.rpartition(":")[2].lower()
        if any(last.lower() in _AFTER.get(tool, ()) or tail in _AFTER.get(tool, ()) for tool in self._tools):
            return True
        if "htpasswd" in self._tools:
            return len(self._positionals) == 2
        if "smbclient" in self._tools:
            return len(self._positionals) == 1 and last.startswith("//")
        if "mc" in self._tools and len(self._positionals) >= 4:
            return self._positionals[0] in ("alias", "config") and any("://" in w for w in self._positionals[-2:])
        return word.startswith("/p:") and "xfreerdp" in self._tools
