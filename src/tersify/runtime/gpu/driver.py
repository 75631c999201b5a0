"""Launches on the GPU, in torch's current stream, through CUDA's driver library."""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import Tensor

from tersify.runtime.gpu.launch import Argument, Launch
from tersify.runtime.gpu.nvrtc import CannotBuild, machine_code

LEAST_CAPABILITY = (8, 0)  # tensor cores for int8 and bf16 as the kernels use them
_STATIC_SHARED = 48 * 1024  # more is allowed when asked for
_MAX_SHARED_ATTRIBUTE = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_CARVEOUT_ATTRIBUTE = 9  # CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
# Percent. Kernels that share a multiprocessor must want the same part of it, or the
# next one waits until the last has left.
_CARVEOUT = -1
_SHARED_OF_BLOCK = 97  # CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
_EARLY_START = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


class _Attribute(ctypes.Structure):
    _fields_ = [
        ("id", ctypes.c_int),
        ("pad", ctypes.c_char * 4),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_char * 60),
    ]


class _Config(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    ]


_FUNCTIONS: dict[tuple[object, ...], ctypes.c_void_p] = {}
_ALLOWED: dict[int, int] = {}  # shared memory that a function may ask for


def _index_of(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


def run(launch: Launch, device: torch.device) -> None:
    """Start it; the next kernel of the stream that asks for it may start before this
    one ends.
    """
    index = _index_of(device)
    with torch.cuda.device(index):
        function = prepared(launch, index)
        assert function.value is not None
        if launch.shared_bytes > _ALLOWED.get(function.value, 0):
            _check(
                _cuda().cuFuncSetAttribute(
                    function, _MAX_SHARED_ATTRIBUTE, launch.shared_bytes
                ),
                launch,
            )
            _ALLOWED[function.value] = launch.shared_bytes
        values = list(map(_value, launch.arguments))
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        early = _Attribute(id=_EARLY_START, value=1)
        config = _Config(
            grid=(launch.grid[0], launch.grid[1], 1),
            block=(launch.threads, 1, 1),
            shared_bytes=launch.shared_bytes,
            stream=torch.cuda.current_stream(index).cuda_stream,
            attributes=ctypes.pointer(early),
            attribute_count=int(torch.cuda.get_device_capability(index) >= (9, 0)),
        )
        _check(
            _cuda().cuLaunchKernelEx(ctypes.byref(config), function, pointers, None),
            launch,
        )


def prepared(launch: Launch, index: int) -> ctypes.c_void_p:
    """The kernel of a launch, built and loaded; capturing a graph must not meet one
    that is not.
    """
    key = (index, launch.kernel, *launch.defines.items())
    found = _FUNCTIONS.get(key)
    if found is None:
        capability = torch.cuda.get_device_capability(index)
        if capability < LEAST_CAPABILITY:
            raise CannotBuild(
                f"the kernels need compute capability 8.0, this GPU has {capability[0]}.{capability[1]}"
            )
        code = machine_code(launch.kernel, launch.files, launch.defines, capability)
        torch.cuda.synchronize(index)  # also makes torch's context the current one
        module, found = ctypes.c_void_p(), ctypes.c_void_p()
        _check(_cuda().cuModuleLoadData(ctypes.byref(module), code), launch)
        _check(
            _cuda().cuModuleGetFunction(
                ctypes.byref(found), module, launch.kernel.encode()
            ),
            launch,
        )
        _check(
            _cuda().cuFuncSetAttribute(found, _CARVEOUT_ATTRIBUTE, _CARVEOUT), launch
        )
        _FUNCTIONS[key] = found
    return found


def shared_bytes(device: torch.device) -> int:
    """The most shared memory that a block can ask for."""
    index = _index_of(device)
    found = ctypes.c_int()
    if _cuda().cuDeviceGetAttribute(ctypes.byref(found), _SHARED_OF_BLOCK, index):
        return _STATIC_SHARED
    return found.value


@cache
def _cuda() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CannotBuild(f"CUDA's driver library is missing ({error})") from None


def _value(
    argument: Argument,
) -> ctypes._SimpleCData[int] | ctypes._SimpleCData[float] | ctypes.c_void_p:
    if argument is None:
        return ctypes.c_void_p(0)
    if isinstance(argument, Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    return (
        ctypes.c_float(argument)
        if isinstance(argument, float)
        else ctypes.c_int(argument)
    )


def _check(status: int, launch: Launch) -> None:
    if status:
        text = ctypes.c_char_p()
        _cuda().cuGetErrorString(status, ctypes.byref(text))
        why = text.value.decode() if text.value else f"error {status}"
        raise RuntimeError(f"kernel {launch.kernel} {dict(launch.defines)}: {why}")
