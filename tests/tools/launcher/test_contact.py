"""Strangers at the launcher's port: nothing is read before a proof of the secret, and all that is theirs is bounded."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Event, Thread
from time import monotonic
from typing import Any

import pytest
from helpers.fuzz import mutations

from ag.tools.launcher import launch, rank
from ag.tools.launcher.launch import Contacts, Outcome, verdict

DONE = b'{"outcome": "done", "code": 0, "text": "", "progress": ""}\n'


def hello(number: int) -> bytes:
    return json.dumps({"rank": number, "pid": 1, "host": "h"}).encode() + b"\n"


class Launcher:
    """Contacts that a thread looks after."""

    def __init__(self, size: int) -> None:
        self.contacts = Contacts(size, False)
        self._over = Event()
        self._thread = Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.is_set():
            self.contacts.look(0.01)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.contacts.port), 20)

    def rank(self, number: int) -> socket.socket:
        """Connect as a rank does: again, where it is hung up on among many strangers."""
        while True:
            connection = self.connect()
            if rank._proves(connection, self.contacts.secret, monotonic() + 20):
                connection.settimeout(20)
                connection.sendall(hello(number))
                return connection

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self.contacts.close()


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    found = Launcher(2)
    yield found
    found.close()


def has_hung_up(connection: socket.socket) -> bool:
    """Return whether the end of what is sent comes in time."""
    connection.settimeout(10)
    try:
        while connection.recv(4096):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    connection.close()
    return True


def is_answered(connection: socket.socket) -> bool:
    connection.sendall(b"\n")
    return connection.recv(1) == rank.GO_ON


def record(launcher: Launcher) -> bytes:
    """Return what an honest rank sends as its proof."""
    with launcher.connect() as connection:
        theirs, mine = rank._receive(connection, rank.NONCE, monotonic() + 20), os.urandom(rank.NONCE)
        sent = mine + rank.proof(launcher.contacts.secret, b"rank", theirs, mine)
        connection.sendall(sent)
        assert len(rank._receive(connection, rank.PROOF, monotonic() + 20)) == rank.PROOF
    return sent


def test_a_rank_and_its_launcher_prove_the_secret(launcher: Launcher) -> None:
    with launcher.rank(0) as honest, launcher.connect() as stranger:
        assert not rank._proves(stranger, "another secret", monotonic() + 20)
        assert is_answered(honest) and {*launcher.contacts.ranks} == {0}


def test_a_rank_does_not_believe_another_launcher() -> None:
    """The secret is not on the wire, so the other side learns nothing of it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = socket.create_connection(server.getsockname(), 20)
        other, _ = server.accept()
        with other:
            other.sendall(b"n" * rank.NONCE + b"p" * rank.PROOF)
            assert not rank._proves(connection, "the secret", monotonic() + 20)
            assert b"secret" not in other.recv(4096)


def replayed(launcher: Launcher, nonce: bytes, good: bytes) -> bytes:
    return good


WRONG: dict[str, Callable[[Launcher, bytes, bytes], bytes]] = {
    "a recorded proof": replayed,
    "the launcher's own nonce and proof": lambda launcher, nonce, good: nonce + rank.proof(
        launcher.contacts.secret, b"launcher", nonce, nonce),
    "a byte more": lambda launcher, nonce, good: good[:32] + rank.proof(
        launcher.contacts.secret, b"rank", nonce, good[:32]) + b"\n",
    "the old greeting": lambda launcher, nonce, good: json.dumps(
        {"secret": launcher.contacts.secret, "rank": 0, "pid": 1, "host": "h"}).encode() + b"\n",
    "a request": lambda launcher, nonce, good: b"GET / HTTP/1.1\r\nHost: " + b"x" * 80,
    "brackets": lambda launcher, nonce, good: b"[" * 8000 + b"\n",
}


@pytest.mark.parametrize("how", WRONG)
def test_a_wrong_proof_ends_the_connection(how: str, launcher: Launcher) -> None:
    good = record(launcher)
    with launcher.connect() as stranger:
        nonce = rank._receive(stranger, rank.NONCE, monotonic() + 20)
        stranger.sendall(WRONG[how](launcher, nonce, good))
        assert has_hung_up(stranger) and launcher.contacts.ranks == {}


@pytest.mark.parametrize("line", [b"[" * 8000, b'{"rank": 1e999, "pid": 1, "host": ""}', hello(2), hello(0), b"",
                                  b"\xff", b'{"rank": 1, "pid": ' + b"9" * 5000 + b', "host": ""}', b"x" * 9000])
def test_a_wrong_message_of_a_rank_ends_its_connection_alone(line: bytes, launcher: Launcher) -> None:
    with launcher.rank(0) as honest:
        assert is_answered(honest)
        connection = launcher.connect()
        assert rank._proves(connection, launcher.contacts.secret, monotonic() + 20)
        connection.sendall(line.removesuffix(b"\n") + b"\n")
        assert has_hung_up(connection)
        assert is_answered(honest) and {*launcher.contacts.ranks} == {0} and not launcher.contacts.over


@pytest.mark.parametrize("count", [500, pytest.param(20_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("good", [hello(0), DONE], ids=["hello", "outcome"])
def test_messages_of_any_bytes_are_taken_or_refused(good: bytes, count: int) -> None:
    contacts = Contacts(1, False)
    connection, other = socket.socketpair()
    connection.setblocking(False)
    with connection, other:
        for line in mutations(good, count, seed=0):
            found = launch._Rank(connection)
            found.proved, found.number, found.buffer = True, None if good == hello(0) else 0, line
            contacts._lines(found)
            assert found.outcome is None or len(found.outcome.text) <= launch._MOST
            contacts.ranks.clear()
    contacts.close()


def hostile(launcher: Launcher, count: int, good: bytes) -> Iterator[socket.socket]:
    """Connect as many strangers, of every kind, and yield each after what it has sent."""
    garbage = mutations(good, count, seed=count)
    for i, data in enumerate(garbage):
        stranger = launcher.connect()
        with suppress(OSError):
            match i % 5:
                case 0:
                    stranger.sendall(data)
                case 1:
                    pass  # slow: says nothing, and stays
                case 2:
                    stranger.sendall(good[:40])
                case 3:
                    stranger.sendall(b"x" * 100_000)
                case _:
                    stranger.sendall(good)
        yield stranger


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_hostile_connections_change_nothing(count: int, launcher: Launcher) -> None:
    contacts, good = launcher.contacts, record(launcher)
    before = len(os.listdir("/proc/self/fd"))
    ranks, held = [launcher.rank(0)], list[socket.socket]()
    for i, stranger in enumerate(hostile(launcher, count, good)):
        held.append(stranger)
        if i == count // 2:
            ranks.append(launcher.rank(1))  # in the midst of them
        if i % 50 == 0:
            assert all(map(is_answered, ranks))
            assert len(contacts._strangers) <= launch._STRANGERS + 1
            assert all(len(one.buffer) <= rank.NONCE + rank.PROOF + 1 for one in [*contacts._strangers])
            assert len(os.listdir("/proc/self/fd")) - before - len(held) <= launch._STRANGERS + launch._AT_ONCE
        for old in held[:-400]:
            old.close()
        del held[:-400]
    assert all(map(is_answered, ranks)) and contacts.come and not contacts.loss
    for connection in ranks:
        connection.sendall(DONE)
        connection.shutdown(socket.SHUT_WR)
        assert has_hung_up(connection)
    assert verdict(contacts.outcomes()) == Outcome("done")
    for stranger in held:
        stranger.close()


def test_a_stranger_that_is_silent_has_to_go(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    with launcher.rank(0) as honest, launcher.connect() as stranger:
        assert rank._receive(stranger, rank.NONCE, monotonic() + 20)
        monkeypatch.setattr(launch, "monotonic", lambda: monotonic() + launch._PROVE + 1)
        assert has_hung_up(stranger) and is_answered(honest)


def test_a_launcher_out_of_files_does_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    contacts, asked = Contacts(1, False), []

    def accept(server: socket.socket) -> Any:
        asked.append(server)
        raise OSError(errno.EMFILE, "Too many open files")

    with socket.create_connection(("127.0.0.1", contacts.port)):
        with monkeypatch.context() as patched:
            patched.setattr(socket.socket, "accept", accept)
            end = monotonic() + launch._PAUSE / 4
            while monotonic() < end:
                contacts.look(0.01)
        assert len(asked) == 1
        monkeypatch.setattr(launch, "_PAUSE", 0.0)
        contacts._deaf_until = 0.0
        contacts.look(1.0)
        assert len(contacts._strangers) == 1
    contacts.close()
