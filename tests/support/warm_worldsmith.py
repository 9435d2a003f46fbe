"""A `worldsmith` for shells that starts at once: each of its processes is forked from one that has imported everything.

`python warm_worldsmith.py FOLDER` writes the program FOLDER/worldsmith, prints a line, and serves it until its standard
input is closed. A command has the words, environment, folder, input and output of its shell; what it imports first,
and modules named by PYTHONPATH, are those of the server.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

PROGRAM = """#!{python} -IS
import os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [b"."], [0, 1, 2])
    server.sendall(repr((sys.argv, os.getcwd(), dict(os.environ))).encode())
    server.shutdown(socket.SHUT_WR)
    code = int(server.makefile().read())
sys.exit(code if code >= 0 else 128 - code)
"""


@contextlib.contextmanager
def warm_programs() -> Iterator[Path]:
    """The folder of the program, for PATH. Commands that still run at the end are killed."""
    with tempfile.TemporaryDirectory() as folder:  # short, as the address of a socket has to be
        command = [sys.executable, "-W", "ignore", __file__, folder]
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        with server:
            assert server.stdout is not None
            assert server.stdout.readline(), "the server of commands did not start"
            yield Path(folder)
            os.killpg(server.pid, signal.SIGKILL)


def serve(folder: Path) -> None:
    """Returns in a process of its own for each command, which is then as if a shell had started it."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen()
        program = folder / "worldsmith"
        program.write_text(PROGRAM.format(python=sys.executable, address=str(folder / "socket")))
        program.chmod(0o755)
        print("ready", flush=True)
        while sys.stdin not in select.select([sys.stdin, listener], [], [])[0]:
            client, _ = listener.accept()
            if os.fork() == 0:
                break
            client.close()
            reap(os.WNOHANG)
        else:
            reap(0)
            os._exit(0)
    _, files, _, _ = socket.recv_fds(client, 1, 3)
    request = client.makefile("rb").read().decode()
    if command := os.fork():
        waiting = select.poll()
        waiting.register(os.pidfd_open(command))
        waiting.register(client, 0)  # only whether its process is gone, as after `kill`
        waiting.poll()
        os.kill(command, signal.SIGTERM)  # without effect on one that has ended by itself
        code = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
        with contextlib.suppress(OSError):
            client.sendall(str(code).encode())
        os._exit(0)
    client.close()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.argv, place, environment = ast.literal_eval(request)
    os.chdir(place)
    os.environ.clear()
    os.environ.update(environment)


def reap(options: int) -> None:
    """Takes note of the processes that have ended, and with 0 waits for the others."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, options)[0]:
            pass


if __name__ == "__main__":
    from imported_once import import_for_videos

    from worldsmith.__main__ import program

    import_for_videos()
    gc.freeze()  # no command looks for garbage in what it shares with the others
    serve(Path(sys.argv[1]))
    program()
