"""A PostgreSQL server of one's own, from the system's packages, on loopback and never as root."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest


@contextmanager
def postgres_server() -> Iterator[str]:
    """The URL of a server, without the database's name. Skips where PostgreSQL is not installed."""
    programs = [shutil.which("initdb"), *sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)]
    initdb = next((Path(program) for program in programs if program), None)
    if initdb is None or not initdb.with_name("postgres").exists():
        pytest.skip("needs PostgreSQL's server: apt-get install postgresql")
    # PostgreSQL refuses to run as root, so a folder outside pytest's own is handed to somebody who may run it.
    as_user: dict[str, object] = {}
    folder = Path(tempfile.mkdtemp(prefix="longturn-postgres-"))
    if os.geteuid() == 0:
        somebody = pwd.getpwnam("nobody")
        as_user = {"user": somebody.pw_uid, "group": somebody.pw_gid, "extra_groups": []}
        os.chown(folder, somebody.pw_uid, somebody.pw_gid)
    password = secrets.token_hex(16)
    (folder / "password").write_text(password)
    data, port = folder / "data", free_port()
    try:
        subprocess.run(
            [initdb, "-D", data, "-U", "tester", "-A", "scram-sha-256", "--pwfile", folder / "password", "--no-sync"],
            **as_user,
            cwd=folder,
            check=True,
            capture_output=True,
        )
        command = [initdb.with_name("postgres"), "-D", data, "-F", "-p", str(port), "-k", folder]
        command += ["-c", "listen_addresses=127.0.0.1", "-c", "max_connections=50"]
        with open(folder / "log", "wb") as log:
            server = subprocess.Popen(command, **as_user, cwd=folder, stdout=log, stderr=log)
        try:
            url = f"postgresql://tester:{password}@127.0.0.1:{port}"
            wait_for(url, server, folder / "log")
            yield url
        finally:
            server.send_signal(signal.SIGINT)  # its fast shutdown, which waits for no client
            server.wait(30)
    finally:
        shutil.rmtree(folder)


def new_database(url: str) -> str:
    """The URL of an empty database on the server."""
    name = f"t{secrets.token_hex(8)}"
    with psycopg.connect(f"{url}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")  # type: ignore[call-overload]
    return f"{url}/{name}"


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(f"{url}/postgres").close()
            return
        except psycopg.OperationalError:
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
