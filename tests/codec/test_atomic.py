import os

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
