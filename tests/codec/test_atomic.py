import os
import stat

import pytest

from tersify.codec.atomic import replacing


def test_a_file_is_replaced_as_a_whole_and_keeps_the_usual_permissions(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with replacing(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    (tmp_path / "usual").touch()
    assert path.stat().st_mode == (tmp_path / "usual").stat().st_mode


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


def test_the_file_is_on_the_disk_before_its_name_and_the_name_before_the_call_returns(tmp_path, monkeypatch):
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
