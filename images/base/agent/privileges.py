"""Privileges of the processes that the agent starts: none. Only the agent mounts and changes the network.

A container has CAP_NET_ADMIN and CAP_SYS_ADMIN for the agent's sake, and its processes run as root. With them a broker
could mount a cgroup hierarchy and name a program of the machine in its `release_agent`, or remount /proc and do so in
`core_pattern`. So the supervisor gives them up before it starts the system:

    every capability leaves the bounding set: root and set-uid programs gain none by exec;
    permitted, effective and inheritable sets are emptied: nothing is left to use, or to pass on;
    no_new_privs is set: nothing is taken back;
    a filter of system calls refuses new user namespaces: a process has every capability in its own.

This guards a machine against accidents of the system under test, not against an attacker: the system is still root and
may write to files that the agent runs.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

_PR_CAPBSET_DROP: Final = 24
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_SET_SECCOMP: Final = 22
_SECCOMP_MODE_FILTER: Final = 2
_CAPABILITY_VERSION_3: Final = 0x20080522

# linux/filter.h and linux/seccomp.h
_LOAD: Final = 0x20
_JUMP_EQUAL: Final = 0x15
_JUMP_AT_LEAST: Final = 0x35
_JUMP_ANY_BIT: Final = 0x45
_RETURN: Final = 0x06
_ALLOW: Final = 0x7FFF0000
_FAIL: Final = 0x00050000
_NUMBER_AT: Final = 0
_ARCHITECTURE_AT: Final = 4
_FIRST_ARGUMENT_AT: Final = 16
_CLONE_NEWUSER: Final = 0x10000000

_X32: Final = 0x40000000
"""System calls of x86-64's second interface are numbered from here."""
_CLONE3: Final = 435
_UNSHARE_AND_CLONE: Final = {"x86_64": (0xC000003E, 272, 56), "aarch64": (0xC00000B7, 97, 220)}
"""Machine → its number in seccomp.h, and those of the system calls unshare and clone."""

_libc = ctypes.CDLL(None, use_errno=True)


class _Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("value", ctypes.c_uint32)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction))]


def drop() -> None:
    """Give up every privilege of this process, and of all that it starts, for good. Raises OSError."""
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    for capability in range(last + 1):
        try:
            _call(_libc.prctl, _PR_CAPBSET_DROP, capability, 0, 0, 0)
        except PermissionError:  # without CAP_SETPCAP the set stays, and no_new_privs keeps it from being used
            break
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _call(_libc.capset, header, (ctypes.c_uint32 * 6)())
    _call(_libc.prctl, _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _forbid_user_namespaces(os.uname().machine)


def _forbid_user_namespaces(machine: str) -> None:
    """Let unshare and clone fail with EPERM if they ask for a user namespace.

    clone3, whose flags a filter cannot read, answers ENOSYS, and the C library falls back on clone. System calls of
    another interface than the machine's own fail. No effect on machines whose numbers are not listed here.
    """
    if machine not in _UNSHARE_AND_CLONE:
        return
    architecture, unshare, clone = _UNSHARE_AND_CLONE[machine]
    instructions = (
        _Instruction(_LOAD, 0, 0, _ARCHITECTURE_AT),
        _Instruction(_JUMP_EQUAL, 0, 7, architecture),
        _Instruction(_LOAD, 0, 0, _NUMBER_AT),
        _Instruction(_JUMP_AT_LEAST, 5, 0, _X32),
        _Instruction(_JUMP_EQUAL, 5, 0, _CLONE3),
        _Instruction(_JUMP_EQUAL, 1, 0, unshare),
        _Instruction(_JUMP_EQUAL, 0, 4, clone),
        _Instruction(_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
        _Instruction(_JUMP_ANY_BIT, 0, 2, _CLONE_NEWUSER),
        _Instruction(_RETURN, 0, 0, _FAIL | errno.EPERM),
        _Instruction(_RETURN, 0, 0, _FAIL | errno.ENOSYS),
        _Instruction(_RETURN, 0, 0, _ALLOW),
    )
    program = _Program(len(instructions), (_Instruction * len(instructions))(*instructions))
    _call(_libc.prctl, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0)


def _call(function: Callable[..., int], *arguments: object) -> None:
    converted = [ctypes.c_ulong(value) if isinstance(value, int) else value for value in arguments]
    if function(*converted):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
