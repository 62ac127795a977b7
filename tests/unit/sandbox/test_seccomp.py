"""The filter is run here, instruction by instruction, as the kernel would."""

from __future__ import annotations

import operator
import struct

import pytest

from core.sandbox.seccomp import MACHINES, allowed_calls, compile_filter, other_calls

ALLOW, SKIP, REFUSE, KILL = 0x7FFF0000, 0x00050000, 0x00050001, 0x80000000
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
JUMPS = {0x15: operator.eq, 0x25: operator.gt, 0x35: operator.ge, 0x45: operator.and_}
IOCTL = {"x86_64": 16, "aarch64": 29}
FCNTL = {"x86_64": 72, "aarch64": 25}
FORBIDDEN = {
    "x86_64": {"clone": 56, "fork": 57, "execve": 59, "socket": 41, "kill": 62, "ptrace": 101, "prctl": 157},
    "aarch64": {"clone": 220, "execve": 221, "socket": 198, "kill": 129, "ptrace": 117, "prctl": 167},
}


def verdict(program: bytes, number: int, arch: int, argument: int = 0, fourth: int = 0, first: int = 0) -> int:
    data = struct.pack("=IIQ6Q", number, arch, 0, first, argument, 0, fourth, 0, 0)
    accumulator = position = 0
    while True:
        code, if_true, if_false, operand = struct.unpack_from("=HBBI", program, position * 8)
        position += 1
        if code == 0x06:
            return int(operand)
        if code == 0x20:
            accumulator = struct.unpack_from("=I", data, operand)[0]
        else:
            position += if_true if JUMPS[code](accumulator, operand) else if_false


@pytest.mark.parametrize("machine", MACHINES)
def test_exactly_the_named_calls_pass(machine: str) -> None:
    program, allowed = compile_filter(machine), set(allowed_calls(machine).values())
    for number in set(range(1024)) - set(other_calls(machine).values()):
        assert verdict(program, number, ARCH[machine]) == (ALLOW if number in allowed else REFUSE), number
    assert not allowed & set(FORBIDDEN[machine].values())


@pytest.mark.parametrize("machine", MACHINES)
def test_another_calling_convention_kills(machine: str) -> None:
    program = compile_filter(machine)
    assert verdict(program, 0, 0x40000003) == KILL
    assert verdict(program, 0x40000000, ARCH[machine]) == KILL
    assert verdict(program, 0xFFFFFFFF, ARCH[machine]) == KILL


@pytest.mark.parametrize("machine", MACHINES)
def test_arguments_decide_over_ioctl_fcntl_and_mmap(machine: str) -> None:
    """fcntl neither locks nor leases nor resizes what the host shares, and mmap takes none of its huge pages."""
    program, arch, others = compile_filter(machine), ARCH[machine], other_calls(machine)
    assert [verdict(program, IOCTL[machine], arch, argument=request) for request in (0x5401, 0x5412)] == [ALLOW, REFUSE]
    passed = [command for command in range(2048) if verdict(program, FCNTL[machine], arch, command) == ALLOW]
    assert passed == [0, 1, 2, 3, 4, 5, 1030, 1032]
    # Locks of records and syncs succeed, and do nothing.
    assert [verdict(program, FCNTL[machine], arch, lock) for lock in (6, 7)] == [SKIP, SKIP]
    assert [verdict(program, others[sync], arch) for sync in ("fsync", "fdatasync")] == [SKIP, SKIP]
    assert [verdict(program, others["mmap"], arch, fourth=flags) for flags in (0x22, 0x40022)] == [ALLOW, REFUSE]


@pytest.mark.parametrize(("machine", "clone"), [("x86_64", 56), ("aarch64", 220)])
def test_a_workspace_may_start_processes_but_make_no_namespace(machine: str, clone: int) -> None:
    program, allowed = compile_filter(machine, processes=True), allowed_calls(machine, processes=True)
    assert {"execve", "kill", "pipe2"} <= allowed.keys() - allowed_calls(machine).keys()
    # Threads as pthread_create makes them, and processes as fork does; then each kind of namespace.
    assert [verdict(program, clone, ARCH[machine], first=flags) for flags in (0x3D0F00, 0x1200011)] == [ALLOW, ALLOW]
    kinds = [1 << bit for bit in (17, 25, 26, 27, 28, 29, 30)]
    assert {verdict(program, clone, ARCH[machine], first=kind | 17) for kind in kinds} == {REFUSE}
    assert verdict(program, 435, ARCH[machine]) == 0x00050026, "ENOSYS"
    still = set(FORBIDDEN[machine].values()) - set(allowed.values()) - {clone, 435}
    assert {verdict(program, number, ARCH[machine]) for number in still} == {REFUSE}
    assert verdict(compile_filter(machine), clone, ARCH[machine]) == REFUSE


@pytest.mark.parametrize(
    ("machine", "socket", "servers"), [("x86_64", 41, (49, 50, 43, 288)), ("aarch64", 198, (200, 201, 202, 242))]
)
def test_a_client_may_connect_over_ipv4_and_serve_nothing(machine: str, socket: int, servers: tuple[int, ...]) -> None:
    program, arch = compile_filter(machine, processes=True, clients=True), ARCH[machine]
    assert [family for family in range(64) if verdict(program, socket, arch, first=family) == ALLOW] == [2]
    prctl = FORBIDDEN[machine]["prctl"]
    assert [option for option in range(64) if verdict(program, prctl, arch, first=option) == ALLOW] == [1, 15]
    assert verdict(program, {"x86_64": 73, "aarch64": 32}[machine], arch) == SKIP, "flock"
    assert {verdict(program, number, arch) for number in servers} == {REFUSE}, "bind, listen and accept"
    added = allowed_calls(machine, processes=True, clients=True).keys() - allowed_calls(machine, processes=True).keys()
    assert {"connect", "sendmsg"} < added
    assert verdict(compile_filter(machine, processes=True), socket, arch, first=2) == REFUSE


def test_numbers_are_unique() -> None:
    for machine in MACHINES:
        numbers = list(allowed_calls(machine, processes=True, clients=True).values())
        assert len(numbers) == len(set(numbers))
