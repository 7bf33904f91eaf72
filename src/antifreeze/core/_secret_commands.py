"""Reads command lines word by word: which word is the password of which program.

Most programs name their secrets (``--password X``), and the name reveals them. Some do not: ``mysql -pX``,
``curl -u me:X``, ``wandb login X``. These are listed here. Of a program that is not listed, ``-p X`` is taken for a
password unless X is a number or a port, or the program is known to mean something else by it.
"""

from __future__ import annotations

import re

from antifreeze.core._secret_names import Secrecy, secrecy_of, word_set

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
