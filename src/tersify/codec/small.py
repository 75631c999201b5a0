"""Small files: one section holds the directory and all groups, since naming each in the
header would take more than some of them hold.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from tersify.codec.errors import TerseFileError

SMALL, DIRECTORY = "small", "directory"
MAX_SMALL_BYTES = 1 << 20
_NUMBER_BYTES, _CHECKSUM_BYTES = 3, 4

# What directories are made of. Their zstd frame may refer to it as to text before them:
# a zstd dictionary of raw content. Nothing here may ever change.
DICTIONARY = (
    rb'{"recipe":"description = \"Ternary weights with a wanted fraction of zer'
    rb"os: one threshold\"warmup_epochs = 5\nover = 100\nmethods = [{ method = "
    rb"\"prune\", sparsity = 0.9, scope = \"global\", floor = 0.01, schedule = "
    rb'\"one-shot\" }]\n"recipe":"description = \"Uniform 8-bit weights, symmet'
    rb"ric, one scale per output channel\"\nstart = \"trained\"\n\n[[rules]]\nw"
    rb"eights = [\"*\"]\nmethods = [{ method = \"uniform\", per_channel = true "
    rb'}]\n\n[train]"recipe":"description = \"4-bit codes, each weight counted '
    rb"by its squared gradient over calibration batches\"\nstart = \"trained\"\n"
    rb"\n[[rules]]\nweights = [\"*\"]\nmethods = [{ method = \"lookup\", fit = "
    rb'\"sensitivity\" }]\n\n[train]"recipe":"description = \"4-bit codes for t'
    rb"he best table of 16 8-bit words that a layer can have; no training neede"
    rb"d\"\nstart = \"trained\"\n\n[[rules]]\nweights = \"*\"\nmethods = [{ met"
    rb"hod = \"lookup\" }]\n\n[train]\noptimizer = \"adam\"\nlr = 0.0005\nlr_si"
    rb'ze = 0.06\nschedule = \"cosine\"\n","metadata":{},"aliases":{},"groups":'
    rb'[["packed",0],["split",1],["zeros",2],["planes",3],["rans",4],["zstd",5]'
    rb',["columns",6]],"provenance":{"time":"2026-11-17T00:00:00Z","tersify":"0'
    rb'.1.0","torch":"2.13.0+cpu","python":"3.11.7","machine":"x86_64"},"recipe'
    rb'":"{"tensors":[{"n":"layer1.0.bn1.running_mean","s":[64],"d":["F32",1]},'
    rb'{"n":"layer1.0.bn1.running_var","s":[64],"d":["F32",1]},{"n":"layer1.0.b'
    rb'n1.num_batches_tracked","s":[],"d":["I64",2]},{"n":"features.0.conv2.wei'
    rb'ght","s":[128,64,3,3],"b":["F32",-1,256],"m":["F32",1,128,1,1,1],"c":0},'
    rb'{"n":"fc.weight","s":[10,32],"v":["F16>F32",1,64],"b":["F32",1,3],"c":0,'
    rb'"a":0},{"n":"conv1.weight","s":[16,3,3,3],"b":["F32",1,16],"c":0,"f":{"n'
    rb'":4,"m":8,"k":1,"integer_bits":0,"sign_in_code":0,"saturated":0}},{"n":"'
    rb'conv1.bias","s":[32],"d":["F32",1]},{"n":"'
)


def joined(parts: Mapping[str, bytes]) -> bytes:
    """The directory and the groups as one section: a checksum of all that follows, how
    many parts there are, the length of each, and their bytes.
    """
    head = [len(parts), *map(len, parts.values())]
    body = b"".join([*map(_number, head), *parts.values()])
    return zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "little") + body


def spans_of(section: bytes) -> dict[str, tuple[int, int]]:
    """Where each part begins and ends in the section, which may be anybody's."""
    told = int.from_bytes(section[:_CHECKSUM_BYTES], "little")
    if zlib.crc32(section[_CHECKSUM_BYTES:]) != told:
        raise TerseFileError(
            f"the section {SMALL!r} is damaged: its checksum does not match"
        )
    count, at = _read_number(section, _CHECKSUM_BYTES)
    lengths = []
    # Each length takes a byte, so the count cannot make this longer than the section.
    for _ in range(count):
        length, at = _read_number(section, at)
        lengths.append(length)
    if not count or at + sum(lengths) != len(section):
        raise TerseFileError(
            f"the section {SMALL!r} of {len(section)} bytes names {count} parts of {at + sum(lengths)} bytes"
        )
    spans = {}
    for index, length in enumerate(lengths):
        spans[f"g{index - 1}" if index else DIRECTORY] = (at, at + length)
        at += length
    return spans


def _number(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the highest bit says that more follow."""
    made = bytearray()
    while value >= 128:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])


def _read_number(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(data[at : at + _NUMBER_BYTES]):
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value, at + place + 1
    raise TerseFileError(f"a length in the section {SMALL!r} does not end")
