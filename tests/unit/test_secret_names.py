"""Which variables of an environment are secrets that no other software's process is given."""

import pytest

from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.secret_names import without_secrets
from hanabi_grpo.settings.variables import variables_of

SECRETS = {
    "HF_TOKEN": "x",
    "GITHUB_TOKEN": "x",
    "OPENAI_API_KEY": "x",
    "ANTHROPIC_API_KEY": "x",
    "SOME_APIKEY": "x",
    "AWS_ACCESS_KEY_ID": "x",
    "AWS_SECRET_ACCESS_KEY": "x",
    "AWS_SESSION_TOKEN": "x",
    "AZURE_CLIENT_SECRET": "x",
    "GOOGLE_APPLICATION_CREDENTIALS": "/root/key.json",
    "PGPASSWORD": "x",
    "MYSQL_PWD": "x",
    "db_password": "x",
    "SSH_AUTH_SOCK": "/tmp/agent",
    "DATABASE_URL": "postgres://me:x@db/runs",
    "PIP_INDEX_URL": "https://me:x@index.example/simple",
}
HARMLESS = {
    "HOME": "/root",
    "PATH": "/bin",
    "PWD": "/work",
    "OLDPWD": "/",
    "TOKENIZERS_PARALLELISM": "false",
    "LD_LIBRARY_PATH": "/lib",
    "SSL_CERT_FILE": "/etc/ca.pem",
    "HTTPS_PROXY": "http://me:x@proxy:3128",
    "no_proxy": "localhost",
    "NETRC": "/root/.netrc",
    "CUDA_VISIBLE_DEVICES": "0",
    "HF_HOME": "/models",
    "HOMEPAGE": "https://example.org/a:b@c",
}


def test_what_looks_like_a_secret_goes_and_everything_else_stays() -> None:
    assert without_secrets({**SECRETS, **HARMLESS}) == HARMLESS


def test_the_software_that_is_started_keeps_its_own_key() -> None:
    environ = {"WANDB_API_KEY": "x", "HF_TOKEN": "x"}
    assert without_secrets(environ, keep=("WANDB_",)) == {"WANDB_API_KEY": "x"}
    assert without_secrets(environ) == {}


@pytest.mark.parametrize("is_secret", [True, False])
def test_our_own_settings_are_told_by_their_type_not_by_their_name(is_secret: bool) -> None:
    names = []
    for variable in variables_of(Settings):
        if variable.secret is is_secret:
            names.append(variable.env)
    assert ("HANABI_PARTNER_KEY" in names) is is_secret
    assert ("HANABI_PARTNER_TOKENS" in names) is not is_secret
    environ = dict.fromkeys(names, "1")
    assert without_secrets(environ, keep=("HANABI_",)) == ({} if is_secret else environ)
