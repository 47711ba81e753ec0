"""Signed approvals: what is served must be what somebody vouched for."""

import json
import shutil

import pytest

pytest.importorskip("cryptography")

from worldloom.cli.main import main
from worldloom.serving.approval import approvals, approve, changes, new_key, require_approval
from worldloom.serving.bundle_folder import check_target, read_policy, with_manifest, write_folder


@pytest.fixture
def folder(bundle_folder, tmp_path):
    return shutil.copytree(bundle_folder, tmp_path / "bundle")


@pytest.fixture
def key(tmp_path):
    new_key(tmp_path / "ann.pem")
    return tmp_path / "ann.pem"


def digest_of(folder):
    return read_policy(folder)[0]["digest"]


def changed(folder):
    """The same bundle with another constraint file, sound in itself."""
    manifest, files = read_policy(folder)
    files = files | {"constraints.yaml": b"emergency: {valve: 10 %, pump: 500 rpm}\n"}
    about = {name: value for name, value in manifest.items() if name not in ("files", "digest")}
    return write_folder(folder, with_manifest(about, files))


def test_what_was_approved_is_allowed_and_nothing_else(folder, key):
    public = f"{key}.pub"
    assert require_approval(folder, digest_of(folder), ()) == []
    with pytest.raises(ValueError, match=r"is not approved by .*ann\.pem\.pub; run `worldloom app"):
        require_approval(folder, digest_of(folder), [public])
    approve(folder, key, note="after the review of Tuesday")
    (found,) = require_approval(folder, digest_of(folder), [public])
    assert found["note"] == "after the review of Tuesday"
    kept = (folder / "approval.json").read_text()
    changed(folder)
    assert not (folder / "approval.json").exists()  # another bundle, which nobody has seen
    (folder / "approval.json").write_text(kept)
    with pytest.raises(ValueError, match=r"it was changed since; approve it again"):
        require_approval(folder, digest_of(folder), [public])


@pytest.mark.parametrize("field", ["digest", "note", "time", "replaces", "signature"])
def test_a_forged_approval_is_found(folder, key, field):
    approve(folder, key)
    path = folder / "approval.json"
    content = json.loads(path.read_text())
    forged = {"digest": "0" * 64, "time": 1.0, "signature": "00" * 64}
    content["approvals"][0][field] = forged.get(field, "other")
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"forged or damaged") as error:
        require_approval(folder, digest_of(folder), [f"{key}.pub"])
    assert "\n" not in str(error.value)


def test_two_people_can_be_asked_for(folder, key, tmp_path):
    other = tmp_path / "ben.pem"
    new_key(other)
    approve(folder, key)
    with pytest.raises(ValueError, match=r"not approved by .*ben\.pem\.pub"):
        require_approval(folder, digest_of(folder), [f"{key}.pub", f"{other}.pub"])
    approve(folder, other)
    approve(folder, other, note="again")  # in place of the first
    assert len(approvals(folder)) == 2
    both = require_approval(folder, digest_of(folder), [f"{key}.pub", f"{other}.pub"])
    assert [one["note"] for one in both] == ["", "again"]
    check_target(folder)  # a bundle with approvals can be exported over


def test_what_changes_in_the_constraints_is_shown(folder, bundle_folder, key, capsys):
    changed(folder)
    lines = changes(bundle_folder, folder)
    assert "+emergency: {valve: 10 %, pump: 500 rpm}" in lines
    words = ["approve", str(folder), "--key", str(key), "--replaces", str(bundle_folder)]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "+emergency: {valve: 10 %, pump: 500 rpm}" in out
    assert digest_of(folder)[:12] in out
    assert approvals(folder)[0]["replaces"] == digest_of(bundle_folder)


def test_mistakes_are_one_line(folder, key, tmp_path, capsys):
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("no key")
    for words, said in (
        (["approve"], "name a bundle and --key FILE"),
        (["approve", str(folder), "--key", str(tmp_path / "away.pem")], "the key cannot be read"),
        (["approve", str(folder), "--key", str(nothing)], "is no private Ed25519 key in PEM"),
        (["approve", str(folder), "--key", f"{key}.pub"], "is no private Ed25519 key in PEM"),
        (["approve", str(tmp_path), "--key", str(key)], "is no bundle of a policy"),
        (["approve", "--new-key", str(key)], "a key is never written over"),
        (["approve", str(folder), "--new-key", str(key)], "--new-key stands alone"),
        (
            ["serve", str(folder), "--no-token", "--port", "0", "--approved-by", f"{key}.pub"],
            "is not approved by",
        ),
        (
            ["serve", str(folder), "--no-token", "--port", "0", "--approved-by", str(key)],
            "is no public Ed25519 key",
        ),
    ):
        assert main(words) == 2, words
        error = capsys.readouterr().err.strip()
        assert said in error
        assert len(error.splitlines()) == 1, error
    assert not (folder / "approval.json").exists()
    assert key.stat().st_mode & 0o077 == 0
    assert not (tmp_path / "audit.jsonl").exists()  # a refused bundle leaves no log


def test_a_damaged_file_of_approvals_is_told(folder, key):
    (folder / "approval.json").write_text('{"approvals": 3}')
    with pytest.raises(ValueError, match=r"approval\.json cannot be read"):
        require_approval(folder, digest_of(folder), [f"{key}.pub"])
