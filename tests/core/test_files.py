"""Files that others wrote: what is no JSON, and what no memory holds."""

import pytest

from worldloom.core.files import atomic_path, check_memory, read_json


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "line 1, column 2 is not JSON"),
        (b"\xff", "byte 0 is not UTF-8"),
        (b'{"a": NaN}', "NaN is not a finite number"),
        (b"[-Infinity]", "-Infinity is not a finite number"),
        (b"[1e400]", "1e400 is not a finite number"),
        (b"[" * 100_000, "the lists in it are nested too deeply"),
        (b"9" * 5000, "not JSON: Exceeds the limit"),
    ],
)
def test_what_is_no_json_is_told_in_one_line(tmp_path, content, message):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        read_json(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


def test_two_that_write_a_file_at_once_have_drafts_of_their_own(tmp_path):
    """Of two machines, processes may have one number."""
    path = tmp_path / "file"
    with atomic_path(path) as one:
        one.write_text("one")
        with atomic_path(path) as other:
            other.write_text("other")
        assert path.read_text() == "other"
    assert path.read_text() == "one"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_json_is_read_as_it_is(tmp_path):
    (tmp_path / "a.json").write_text('{"a": [1, 2.5, null, "x"]}')
    assert read_json(tmp_path / "a.json") == {"a": [1, 2.5, None, "x"]}


def test_what_no_memory_holds_is_refused_before_it_is_read():
    check_memory("log.npz", 10**6)
    with pytest.raises(
        ValueError, match=r"log.npz: 9,313.2 GiB of numbers, where this machine can take"
    ):
        check_memory("log.npz", 10**13)
