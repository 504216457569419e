"""Runs one untrusted Python program under limits that it cannot lift. Started by `verl.rewards.sandbox`, as a script.

The limits are the kernel's: resource limits for processor time, memory, file size and open files, and a system-call
filter (seccomp, Linux 3.5 or newer, no privileges needed) without which nothing is run. The filter refuses what would
reach outside: sockets, new processes, other programs, signals to others, and every change of the file system. The
program reads its standard input and writes its standard output and error, and may read files.
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

REFUSED = 97
"""Exit code when the limits cannot be set."""

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


def restrict(cpu_s: int, memory_bytes: int, output_bytes: int) -> None:
    """Set all limits on this process. OSError when one cannot be set."""
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
    program = call_filter(machine, os.getpid())
    code = ctypes.create_string_buffer(program, len(program))

    class Filter(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]

    described = Filter(len(program) // 8, ctypes.addressof(code))
    for arguments in (
        (_PR_SET_PDEATHSIG, 9, 0, 0, 0),  # a program does not outlive who started it
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, 2, ctypes.byref(described), 0, 0),
    ):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), f"prctl({arguments[0]}): {os.strerror(ctypes.get_errno())}")


def main(request_fd: int, result_fd: int) -> None:
    """Read the request (JSON) from the one descriptor, set the limits, run the program; with `function`, write what it
    returns as JSON to the other descriptor."""
    with os.fdopen(request_fd, encoding="utf-8") as file:
        request = json.load(file)
    try:
        restrict(request["cpu_s"], request["memory_bytes"], request["output_bytes"])
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(REFUSED)
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
    main(int(sys.argv[1]), int(sys.argv[2]))
