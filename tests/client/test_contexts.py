"""Servers that `contexts.toml` names."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from certificates import Certificates
from support import raises

import rollserve

ADDRESS = "server.lab:50051"


@pytest.fixture
def contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the contexts, which does not exist yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "rollserve").mkdir()
    return tmp_path / "rollserve" / "contexts.toml"


def test_name_leads_to_the_address(contexts: Path) -> None:
    contexts.write_text(f'[lab]\naddress = "{ADDRESS}"\n["at home"]\naddress = "unix:/run/rollserve"\n')
    assert repr(rollserve.connect("lab")) == f"<Sampler '{ADDRESS}'>"
    assert repr(rollserve.aconnect("at home")) == "<AsyncSampler 'unix:/run/rollserve'>"


def test_contexts_are_in_the_home_directory_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".config" / "rollserve"
    folder.mkdir(parents=True)
    (folder / "contexts.toml").write_text(f'[lab]\naddress = "{ADDRESS}"\n')
    assert repr(rollserve.connect("lab")) == f"<Sampler '{ADDRESS}'>"


def test_files_are_found_beside_the_contexts(contexts: Path) -> None:
    made = Certificates(contexts.parent / "lab")
    contexts.write_text(f'[lab]\naddress = "{ADDRESS}"\nca = "lab/ca.pem"\n')
    rollserve.connect("lab").close()
    rollserve.connect("lab", cert=made.path("client"), key=made.path("client-key")).close()
    shutil.rmtree(made.folder)
    with raises(rollserve.InvalidArgumentError, field="ca", quotes=str(made.path("ca"))):
        rollserve.connect("lab")


def test_argument_precedes_the_context(contexts: Path, tmp_path: Path) -> None:
    contexts.write_text(f'[lab]\naddress = "{ADDRESS}"\nca = "/nowhere.pem"\n')
    rollserve.connect("lab", ca=Certificates(tmp_path / "made").path("ca")).close()


def test_unknown_name_is_refused(contexts: Path) -> None:
    for text in (None, f'[lab]\naddress = "{ADDRESS}"\n'):
        if text is not None:
            contexts.write_text(text)
        with raises(rollserve.InvalidArgumentError, field="target", quotes=("'labs'", "HOST:PORT", str(contexts))):
            rollserve.connect("labs")


MALFORMED = {
    "no TOML": ("[lab", "TOML"),
    "no table": ("lab = 3", "3"),
    "unknown key": (f'[lab]\naddress = "{ADDRESS}"\naddres = "x"', "'addres'"),
    "no address": ('[lab]\nca = "x"', "address"),
    "number as address": ("[lab]\naddress = 50051", "50051"),
    "name as address": ('[lab]\naddress = "lab"', "'lab'"),
    "address without a port": ('[lab]\naddress = "lab:"', "'lab:'"),
    "empty path": (f'[lab]\naddress = "{ADDRESS}"\nca = ""', "ca"),
}


@pytest.mark.parametrize(("text", "quote"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_context_is_refused(contexts: Path, text: str, quote: str) -> None:
    contexts.write_text(text)
    with raises(rollserve.InvalidArgumentError, field="target", quotes=quote):
        rollserve.connect("lab")


def test_file_that_is_not_text_is_refused(contexts: Path) -> None:
    contexts.write_bytes(b"\xff")
    with raises(rollserve.InvalidArgumentError, field="target", quotes=str(contexts)):
        rollserve.connect("lab")


def test_file_that_cannot_be_read_is_refused(contexts: Path) -> None:
    contexts.mkdir()
    with raises(rollserve.InvalidArgumentError, field="target", quotes=str(contexts)):
        rollserve.connect("lab")
