import os
import socket
import stat

import pytest
import torch

import tersify
from tersify.cli import main
from tersify.codec.atomic import replacing, write_text
from tersify.regular import read_regular


def special_file(kind, path):
    """Something at `path` that is no regular file; what must be kept alive meanwhile."""
    if kind == "FIFO":
        os.mkfifo(path)
        return None
    server = socket.socket(socket.AF_UNIX)
    server.bind(os.path.relpath(path))  # the whole path may be too long for a socket
    return server


@pytest.fixture
def umask():
    before = os.umask(0o027)
    yield 0o027
    os.umask(before)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with replacing(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


def test_a_new_file_has_the_rights_that_the_umask_leaves(tmp_path, umask):
    write_text(tmp_path / "new", "")
    assert mode(tmp_path / "new") == 0o666 & ~umask


@pytest.mark.parametrize("rights", [0o640, 0o600, 0o444, 0o666])
def test_a_replaced_file_keeps_its_rights(rights, tmp_path, umask):
    path = tmp_path / "net.terse"
    path.touch()
    path.chmod(rights)
    tersify.save({"w": torch.ones(3)}, path)
    assert mode(path) == rights
    assert list(tersify.open(path)) == ["w"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give files away")
def test_a_replaced_file_keeps_its_owner(tmp_path):
    path = tmp_path / "file"
    path.touch()
    os.chown(path, 4321, 1234)
    path.chmod(0o6750)
    write_text(path, "new")
    assert (path.stat().st_uid, path.stat().st_gid, mode(path)) == (4321, 1234, 0o6750)


def test_a_file_that_may_not_be_given_away_is_replaced_all_the_same(
    tmp_path, monkeypatch
):
    path = tmp_path / "file"
    path.touch()

    def refuse(*_):
        raise PermissionError("not yours")

    monkeypatch.setattr(os, "fchown", refuse)
    if os.getuid() == 0:
        os.chown(path, 4321, 1234)
    write_text(path, "new")
    assert path.read_text() == "new"


@pytest.mark.parametrize("target", ["there", "elsewhere/there"])
def test_a_symbolic_link_stays_and_what_it_names_is_replaced(target, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    real = tmp_path / target
    real.write_text("old")
    (tmp_path / "first").symlink_to(target)
    (tmp_path / "second").symlink_to("first")
    write_text(tmp_path / "second", "new")
    assert (tmp_path / "second").is_symlink()
    assert (tmp_path / "first").is_symlink()
    assert real.read_text() == "new"
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_link_to_nothing_yet_gets_its_file(tmp_path):
    (tmp_path / "link").symlink_to("later")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "later").read_text() == "new"


def test_a_ring_of_links_is_an_error(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        write_text(tmp_path / "a", "new")
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


@pytest.mark.parametrize("linked", [False, True], ids=["itself", "through a link"])
@pytest.mark.parametrize("kind", ["FIFO", "socket"])
def test_only_regular_files_are_replaced_or_read(kind, linked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept = special_file(kind, tmp_path / "net.terse")
    path = tmp_path / "net.terse"
    if linked:
        path = tmp_path / "link"
        path.symlink_to("net.terse")
    before = sorted(os.listdir(tmp_path))
    for attempt in (
        lambda: tersify.save({"w": torch.ones(2)}, path),
        lambda: tersify.open(path),
        lambda: tersify.load(path, into=torch.nn.Linear(2, 2)),
        lambda: read_regular(path),
    ):
        with pytest.raises(
            OSError, match=f"A {kind} lies there, and only regular files"
        ):
            attempt()
    assert sorted(os.listdir(tmp_path)) == before
    assert not (tmp_path / "net.terse").is_file()
    if kept is not None:
        kept.close()


def test_a_folder_is_not_replaced(tmp_path):
    (tmp_path / "net.terse").mkdir()
    with pytest.raises(IsADirectoryError):
        tersify.save({"w": torch.ones(2)}, tmp_path / "net.terse")
    assert os.listdir(tmp_path) == ["net.terse"]


def test_commands_say_in_one_sentence_what_lies_at_the_path(tmp_path, capsys):
    os.mkfifo(tmp_path / "net.terse")
    assert main(["inspect", str(tmp_path / "net.terse")]) == 2
    told = capsys.readouterr().err
    assert told == (
        f"tersify: {tmp_path}/net.terse: A FIFO lies there, and only regular files are read or replaced; "
        "check the path\n"
    )


@pytest.mark.parametrize("stop", [OSError("disk full"), KeyboardInterrupt()])
def test_an_error_on_the_way_leaves_the_old_file_and_nothing_else(stop, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write_half():
        with replacing(path) as file:
            file.write(b"half")
            raise stop

    with pytest.raises(type(stop)):
        write_half()
    assert (os.listdir(tmp_path), path.read_bytes()) == (["file"], b"old")


def test_a_folder_that_is_not_there_is_named_without_the_temporary_file(tmp_path):
    with (
        pytest.raises(FileNotFoundError, match=f"No such folder: '{tmp_path / 'no'}'$"),
        replacing(tmp_path / "no" / "x"),
    ):
        pass


def test_the_file_is_on_the_disk_before_its_name_and_the_name_before_the_call_returns(
    tmp_path, monkeypatch
):
    done = []

    def fsync(descriptor, sync=os.fsync):
        done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        sync(descriptor)

    def replace(source, target, move=os.replace):
        done.append("name")
        move(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    with replacing(tmp_path / "file") as file:
        file.write(b"new")
    assert done == ["file", "name", "folder"]
