"""The keys file: removed keys, kept lines, and invalid contents."""

from __future__ import annotations

import fcntl
import tomllib

import pytest

from izwi.errors import InvalidRequest
from izwi_api.usage import keys
from izwi_api.usage.limits import KeyLimits

TABLES = {
    name: f'# of {name}\n{header}\nsha256 = "{digit * 64}"\n'
    for name, header, digit in (
        ("first", "[first]", "a"),
        ("second", '  [ "second" ]  # quoted', "b"),
        ("third", "[third]", "c"),
    )
}
TEXT = "# who may come in\n\n" + "\n".join(TABLES.values())


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "keys.toml"
    file.write_text(TEXT)
    file.chmod(0o640)
    return file


@pytest.mark.parametrize("name", TABLES)
def test_removing_a_key_keeps_the_rest_of_the_file(file, name):
    keys.remove_key(file, name)
    after = file.read_text()
    assert list(tomllib.loads(after)) == [other for other in TABLES if other != name]
    assert after.startswith("# who may come in\n\n")
    assert all(table.strip() in after for other, table in TABLES.items() if other != name)
    assert file.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in file.parent.iterdir()] == ["keys.toml"]


def test_a_table_in_the_middle_leaves_one_empty_line(file):
    keys.remove_key(file, "second")
    without = TEXT.replace(TABLES["second"].removeprefix("# of second\n") + "\n", "")
    assert file.read_text() == without.replace("# of second\n", "# of second\n\n", 1)


def test_a_header_alone_and_a_comment_behind_it(file):
    digest = "d" * 64
    file.write_text(f'[one]\nsha256 = "{digest}"\n# of two\n[two]\nsha256 = "{"e" * 64}"\n')
    keys.remove_key(file, "one")
    assert file.read_text() == f'# of two\n[two]\nsha256 = "{"e" * 64}"\n'
    keys.remove_key(file, "two")
    assert keys.read_keys(file) == ()


def test_a_key_that_only_a_person_can_take_out(file):
    before = f'one = {{ sha256 = "{"a" * 64}" }}\n'
    file.write_text(before)
    with pytest.raises(InvalidRequest, match="by hand"):
        keys.remove_key(file, "one")
    assert file.read_text() == before


def test_a_key_that_is_not_there(file):
    with pytest.raises(InvalidRequest, match="no key 'eve'; it has: first, second, third"):
        keys.remove_key(file, "eve")
    assert file.read_text() == TEXT
    file.write_text("")
    with pytest.raises(InvalidRequest, match="it has: none"):
        keys.remove_key(file, "eve")
    file.write_bytes(b"\xff")
    for change in (lambda: keys.remove_key(file, "eve"), lambda: keys.read_keys(file)):
        with pytest.raises(InvalidRequest, match="not UTF-8"):
            change()
    with pytest.raises(InvalidRequest, match="not UTF-8"):
        keys.add_key(file, "eve", KeyLimits())


def test_a_replacement_that_fails_leaves_the_file_as_it_was(file, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keys.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        keys.remove_key(file, "first")
    assert file.read_text() == TEXT
    assert [path.name for path in file.parent.iterdir()] == ["keys.toml"]


def test_a_key_that_was_added_meanwhile_is_not_lost(file, monkeypatch):
    """Removing replaces the file; a process that waited for the old one takes the new one."""
    flock, raced = fcntl.flock, []

    def racing(descriptor, operation):
        if not raced:
            raced.append(True)
            keys.remove_key(file, "first")
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", racing)
    keys.add_key(file, "bob", KeyLimits())
    assert [key.name for key in keys.read_keys(file)] == ["second", "third", "bob"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[a]\nsha256 = "x"', "sha256 of .a. must be 64 hexadecimal digits"),
        ('a = "x"', "a must be a table, like .a."),
        ("[a]\nzebra = 1\nalpha = 2", "unknown setting 'alpha'"),
        (f"[a]\n{'x' * 70} = 1", f"unknown setting '{'x' * 64}'$"),
        (f'["-a"]\nsha256 = "{"a" * 64}"', "'-a' cannot be the name"),
        (f'["{"n" * 65}"]\nsha256 = "{"a" * 64}"', f"'{'n' * 64}' cannot be the name"),
        (f'[a]\nsha256 = "{"a" * 64}"\n[b]\nsha256 = "{"a" * 64}"', "two names have the same key"),
        (f'[a]\nsha256 = "{"a" * 64}"\nrequests_per_minute = 0', "must be a number above 0"),
        (f'[a]\nsha256 = "{"a" * 64}"\nrequests_per_minute = 1.5', "must be a number above 0"),
        (f'[a]\nsha256 = "{"a" * 64}"\ncharacters_per_day = true', "must be a number above 0"),
        (f'[a]\nsha256 = "{"a" * 64}"\naudio_seconds_per_day = inf', "must be a number above 0"),
    ],
)
def test_invalid_keys_files_are_refused(text, message):
    with pytest.raises(InvalidRequest, match=message):
        keys.parse_keys(text, "keys.toml")


def test_keys_file_table_sets_name_digest_and_limits():
    (key,) = keys.parse_keys(
        f'[{"n" * 64}]\nsha256 = "{"a" * 64}"\nrequests_per_minute = 1\n'
        "characters_per_day = 2\naudio_seconds_per_day = 0.5",
        "keys.toml",
    )
    assert (key.name, key.digest, key.limits) == ("n" * 64, b"\xaa" * 32, KeyLimits(1, 2, 0.5))


def test_a_key_is_of_characters_that_a_header_can_carry():
    keys.check_key("!~", "--api-key")
    for key in ("", "a b", "a\x7f", "ä"):
        with pytest.raises(InvalidRequest, match="--api-key must be of visible ASCII"):
            keys.check_key(key, "--api-key")


def test_what_add_wrote_is_as_before_once_it_is_removed(tmp_path):
    file = tmp_path / "keys.toml"
    keys.add_key(file, "one", KeyLimits(60))
    keys.add_key(file, "two", KeyLimits())
    before = file.read_text()
    keys.add_key(file, "three", KeyLimits())
    keys.remove_key(file, "three")
    assert file.read_text().rstrip("\n") == before.rstrip("\n")
    keys.add_key(file, "three", KeyLimits())
    keys.remove_key(file, "two")
    assert "\n\n\n" not in file.read_text()
    assert file.read_text().count("\n\n") == 1
    assert [key.name for key in keys.read_keys(file)] == ["one", "three"]


def test_a_log_that_shows_a_key_does_not_show_its_hash():
    (key,) = keys.parse_keys(f'[a]\nsha256 = "{"a" * 64}"', "keys.toml")
    assert "a" in repr(key)
    assert "digest" not in repr(key)


def test_a_key_has_256_random_bits():
    one, other = keys.new_key(), keys.new_key()
    assert one != other
    assert one.startswith("izwi_")
    assert len(one) == len("izwi_") + 43  # 32 bytes in base64, without its padding


@pytest.mark.parametrize(
    ("mode", "refused"), [(0o600, False), (0o644, False), (0o620, True), (0o602, True)]
)
def test_a_file_that_others_may_write_opens_nothing(file, mode, refused):
    file.chmod(mode)
    if refused:
        with pytest.raises(InvalidRequest, match="others may write"):
            keys.KeyRing(file, None)
    else:
        assert keys.KeyRing(file, None).named("third").digest == b"\xcc" * 32


def test_while_the_file_is_broken_or_away_the_keys_stay_as_they_were(file, caplog):
    now_s = 1000.0
    single = keys.digest_of("single")
    ring = keys.KeyRing(file, single, lambda: now_s)
    names = (keys.SINGLE_KEY_NAME, "first", "second", "third")

    def named():
        return tuple(key.name for key in map(ring.named, names) if key is not None)

    def look(text):
        nonlocal now_s
        if text is None:
            file.unlink(missing_ok=True)
        elif not file.exists() or file.read_text() != text:
            file.write_text(text)
        now_s += 1.0
        return named()

    assert named() == names
    for broken in ("[first", '[first]\nsha256 = "short"\n', None):
        caplog.clear()
        assert look(broken) == names
        assert "the keys stay as they were" in caplog.text
        caplog.clear()
        assert look(broken) == names
        assert caplog.text == ""  # it says so once
    assert look(TABLES["second"]) == (keys.SINGLE_KEY_NAME, "second")
    assert ring.find("single").name == keys.SINGLE_KEY_NAME
    file.write_text(TEXT)
    now_s += 0.99
    assert named() == (keys.SINGLE_KEY_NAME, "second")  # it was looked at a moment ago
    now_s += 0.01
    assert named() == names
