"""Runs one untrusted Python program under limits that it cannot lift. Started by `verl.rewards.sandbox`, as a script.

The limits are the kernel's: resource limits for processor time, memory, file size and open files, and a system-call
filter (seccomp, Linux 3.5 or newer, no privileges needed) without which nothing is run. The filter refuses what would
reach outside: sockets, new processes, other programs, signals to others, and every change of the file system. The
program reads its standard input and writes its standard output and error, and may read the files that its user may.

Among these files are those of /proc, so a program that could look into the process that scores it would find the right
answers and the keys in its environment. See `hide_processes` for what closes that, and where it stays open.
"""

import ctypes
import json
import os
import platform
import resource
import struct
import sys
import types
from typing import Any

# Linux system calls by machine; what a machine lacks is not in its row. Refused whatever the arguments:
_FORBIDDEN = {
    "x86_64": [
        (29, 31), (41, 50), (57, 59), (64, 71), (76, 77), (82, 88), (90, 94), (101, 101), (105, 106), (113, 114),
        (117, 117), (119, 119), (122, 123), (129, 129), (132, 133), (155, 155), (159, 161), (163, 173), (175, 176),
        (188, 190), (197, 200), (212, 212), (235, 235), (240, 241), (246, 246), (248, 250), (258, 261), (263, 266),
        (268, 268), (272, 272), (280, 280), (285, 285), (288, 288), (297, 299), (303, 308), (310, 313), (316, 316),
        (320, 323), (424, 435), (437, 438), (440, 440), (442, 443), (452, 452), (463, 463), (466, 466),
    ],
    "aarch64": [
        (5, 7), (14, 16), (33, 41), (45, 47), (51, 55), (88, 89), (97, 97), (104, 106), (117, 117), (130, 130),
        (138, 138), (142, 147), (149, 149), (151, 152), (161, 162), (164, 164), (170, 171), (180, 181), (186, 198),
        (200, 203), (206, 207), (211, 212), (217, 219), (221, 221), (224, 225), (238, 238), (240, 243), (264, 266),
        (268, 274), (276, 276), (280, 282), (424, 435), (437, 438), (440, 440), (442, 443), (452, 452), (463, 463),
        (466, 466),
    ],
}  # fmt: skip
# Allowed for reading only, for threads only, for this process only:
_OPEN = {"x86_64": {2: 1, 257: 2}, "aarch64": {56: 2}}  # call -> which argument holds the flags
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435  # its flags lie in memory, where a filter cannot look: "not implemented" makes the C library use clone
_KILL = {"x86_64": (62, 234), "aarch64": (129, 131)}
_PRLIMIT = {"x86_64": 302, "aarch64": 261}
_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000  # the second set of x86-64 call numbers begins here

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _EPERM, _ENOSYS, _KILL_PROCESS = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16  # offsets in what a filter sees; arguments have 8 bytes, low half first
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CLONE_THREAD = 0x00010000
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38

_LANDLOCK_CREATE_RULESET, _LANDLOCK_RESTRICT_SELF = 444, 446  # on every machine
_LANDLOCK_CHANGES = 0x1FF3  # every right of the first version but reading files and folders
_CAPABILITIES_V3 = 0x20080522
_CAP_DAC_READ_SEARCH = 1 << 2
_CLONE_NEWUSER = 0x10000000


def call_filter(machine: str, pid: int) -> bytes:
    """The filter program: instructions of 8 bytes (code, jump if true, jump if false, constant)."""
    program: list[tuple[int, int, int, int]] = []

    def add(code: int, constant: int, if_true: int = 0, if_false: int = 0) -> None:
        program.append((code, if_true, if_false, constant))

    def judge(number: int, argument: int, code: int, constant: int, good_if: bool) -> None:
        """For the call `number`: allow it when the test of the argument says `good_if`, else refuse it."""
        add(_EQUAL, number, 0, 4)
        add(_LOAD, _ARGUMENTS + 8 * argument)
        add(code, constant, *((0, 1) if good_if else (1, 0)))
        add(_RETURN, _ALLOW)
        add(_RETURN, _EPERM)

    add(_LOAD, _MACHINE)
    add(_EQUAL, _ARCHITECTURE[machine], 1, 0)
    add(_RETURN, _KILL_PROCESS)
    add(_LOAD, _NUMBER)
    if machine == "x86_64":
        add(_AT_LEAST, _X32, 0, 1)
        add(_RETURN, _KILL_PROCESS)
    add(_EQUAL, _CLONE3, 0, 1)
    add(_RETURN, _ENOSYS)
    for number, argument in _OPEN[machine].items():
        judge(number, argument, _ANY_BIT, _WRITING, good_if=False)
    judge(_CLONE[machine], 0, _ANY_BIT, _CLONE_THREAD, good_if=True)
    for number in _KILL[machine]:
        judge(number, 0, _EQUAL, pid, good_if=True)
    # prlimit asks for limits with a null pointer and sets them with another.
    add(_EQUAL, _PRLIMIT[machine], 0, 6)
    for half in (0, 4):
        add(_LOAD, _ARGUMENTS + 16 + half)
        add(_EQUAL, 0, 1, 0)
        add(_RETURN, _EPERM)
    add(_LOAD, _NUMBER)
    for first, last in _FORBIDDEN[machine]:
        add(_AT_LEAST, first, 0, 2)
        add(_AT_LEAST, last + 1, 1, 0)
        add(_RETURN, _EPERM)
    add(_RETURN, _ALLOW)
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def restrict(cpu_s: int, memory_bytes: int, output_bytes: int) -> bool:
    """Set all limits on this process. OSError when one cannot be set.

    Returns whether other processes are hidden from it (see `hide_processes`).
    """
    machine = platform.machine()
    if sys.platform != "linux" or machine not in _ARCHITECTURE:
        raise OSError(f"no system-call filter for {sys.platform} on {machine}")
    libc = ctypes.CDLL(None, use_errno=True)
    for name, value in (
        ("RLIMIT_CPU", cpu_s),
        ("RLIMIT_AS", memory_bytes),
        ("RLIMIT_FSIZE", output_bytes),
        ("RLIMIT_NOFILE", 64),
        ("RLIMIT_CORE", 0),
    ):
        resource.setrlimit(getattr(resource, name), (value, value))
    _control(libc, _PR_SET_NO_NEW_PRIVS, 1)
    hidden = hide_processes(libc)
    _control(libc, _PR_SET_PDEATHSIG, 9)  # a program does not outlive who started it
    program = call_filter(machine, os.getpid())
    code = ctypes.create_string_buffer(program, len(program))

    class Filter(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]

    described = Filter(len(program) // 8, ctypes.addressof(code))
    _control(libc, _PR_SET_SECCOMP, 2, ctypes.byref(described))
    return hidden


def hide_processes(libc: ctypes.CDLL) -> bool:
    """Keep this process from looking into others: their environment, memory and open files under /proc.

    Landlock (Linux 5.13 or newer, where it is switched on) does that for any user who also gives up capabilities, one
    of which lifts it. Without Landlock, a process without capabilities still cannot look into one that has some, such
    as root's, and one in a user namespace of its own not into any outside. It stays open for a user without
    capabilities, on a machine with neither Landlock nor user namespaces: then False is returned, and
    `verl.rewards.sandbox` warns. Command lines (/proc/<pid>/cmdline) can be read everywhere.
    """
    _enter_landlock(libc)
    drop_capabilities(libc)
    if _sees_parent():
        libc.unshare(_CLONE_NEWUSER)  # refused on some machines: what follows is what counts
    return not _sees_parent()


def drop_capabilities(libc: ctypes.CDLL) -> None:
    """Give up all capabilities but that of reading every file: Python's own may be in another user's folder."""
    header = struct.pack("=Ii", _CAPABILITIES_V3, 0)
    held = ctypes.create_string_buffer(24)  # effective, permitted, inheritable: numbers below 32, then those from 32 on
    if libc.capget(header, held) != 0:
        raise _failed("capget")
    kept = [number & _CAP_DAC_READ_SEARCH for number in struct.unpack("=6I", held.raw)[:2]]
    if libc.capset(header, struct.pack("=6I", *kept, 0, 0, 0, 0)) != 0:
        raise _failed("capset")


def _enter_landlock(libc: ctypes.CDLL) -> None:
    """Enter a Landlock domain, which looks into no process outside it and changes no file. Nothing without Landlock."""
    handled = struct.pack("=Q", _LANDLOCK_CHANGES)
    ruleset = libc.syscall(_LANDLOCK_CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), 0)
    if ruleset < 0:
        return
    if libc.syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0) != 0:
        raise _failed("landlock_restrict_self")
    os.close(ruleset)


def _sees_parent() -> bool:
    try:
        os.close(os.open(f"/proc/{os.getppid()}/environ", os.O_RDONLY))
    except OSError:
        return False
    return True


def _control(libc: ctypes.CDLL, option: int, *arguments: Any) -> None:
    if libc.prctl(option, *arguments, *[0] * (4 - len(arguments))) != 0:
        raise _failed(f"prctl({option})")


def _failed(call: str) -> OSError:
    return OSError(ctypes.get_errno(), f"{call}: {os.strerror(ctypes.get_errno())}")


def main(request_fd: int, limits_fd: int, result_fd: int) -> None:
    """Read the request (JSON) from the first descriptor, set the limits, say to the second what came of that, run the
    program; with `function`, write what it returns as JSON to the third.

    What is said is JSON: `refused`, why the limits cannot be set (then nothing is run) or null, and `hidden`, whether
    other processes are hidden.
    """
    with os.fdopen(request_fd, encoding="utf-8") as file:
        request = json.load(file)
    with os.fdopen(limits_fd, "w", encoding="utf-8") as said:  # closed before the program runs
        try:
            hidden = restrict(request["cpu_s"], request["memory_bytes"], request["output_bytes"])
        except (OSError, ValueError) as error:
            json.dump({"refused": str(error), "hidden": False}, said)
            sys.exit(1)
        json.dump({"refused": None, "hidden": hidden}, said)
    program = types.ModuleType("__main__")
    sys.modules["__main__"] = program
    sys.argv = ["program"]
    exec(compile(request["source"], "<program>", "exec", dont_inherit=True), program.__dict__)
    if request["function"] is not None:
        value = _find(program.__dict__, request["function"])(*request["arguments"])
        with os.fdopen(result_fd, "w", encoding="utf-8") as results:
            json.dump(value, results, default=_plain)


def _find(names: dict[str, Any], function: str) -> Any:
    """The function, or the method of that name of a class `Solution`, as judges of programming contests have it."""
    if function in names:
        return names[function]
    if "Solution" in names:
        return getattr(names["Solution"](), function)
    raise NameError(f"the program defines no function {function!r}")


def _plain(value: Any) -> Any:
    """Sets and the like as lists, numpy's numbers as Python's."""
    return value.tolist() if hasattr(value, "tolist") else sorted(value) if isinstance(value, set) else list(value)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
