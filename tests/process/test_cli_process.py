"""Start and end of the `ferrum` process: signals, closed streams, closed pipes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib

import pytest

from source_tree import REPOSITORY

INTERRUPTED_IMPORT = """
import sys
from importlib.metadata import EntryPoint

class Interrupted:
    def find_spec(name, *_):
        if name == "typer":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted)
EntryPoint("ferrum", sys.argv.pop(1), "console_scripts").load()()
"""


def test_ctrl_c_during_imports_exits_with_130() -> None:
    scripts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"]
    for entry in (scripts["ferrum"], "ferrum.__main__:main"):
        done = subprocess.run([sys.executable, "-c", INTERRUPTED_IMPORT, entry, "doctor"], capture_output=True)
        assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_a_closed_pipe_exits_with_two_and_prints_nothing() -> None:
    """Exit code 1 would mean a difference found by `ferrum replay` or `ferrum bench compare`."""
    command = f"{sys.executable} -m ferrum doctor | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "")


def test_a_chat_message_can_be_edited() -> None:
    ours, theirs = os.openpty()
    code = "from ferrum.cli.chat import ask; print(ascii(ask()))"
    with subprocess.Popen([sys.executable, "-c", code], stdin=theirs, stdout=theirs, stderr=theirs) as command:
        said = b""
        while b"> " not in said:
            said += os.read(ours, 1 << 10)
        os.write(ours, b"ab\x1b[Dc\n")
        while b"'\r\n" not in said:
            said += os.read(ours, 1 << 10)
        assert command.wait() == 0
    os.close(ours)
    os.close(theirs)
    assert b"'acb'" in said


LINGER = """
import sys, time
from contextlib import contextmanager
from ferrum.cli import main
from ferrum.cli.start import main as start

@contextmanager
def server():
    try:
        yield
    finally:
        print("ended", flush=True)

def run():
    with server():
        print("running", flush=True)
        time.sleep(60)

main.app.command("linger")(run)
sys.argv = ["ferrum", "linger"]
start()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_terminated_command_ends_what_it_started(number: signal.Signals, code: int) -> None:
    script = f"import signal; signal.signal({number:d}, signal.SIG_DFL)\n{LINGER}"  # nohup may have started the tests
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as command:
        assert command.stdout is not None and command.stderr is not None
        assert command.stdout.readline() == b"running\n"
        command.send_signal(number)
        assert (command.stdout.read(), command.stderr.read(), command.wait()) == (b"ended\n", b"", code)


def test_nohup_keeps_a_command_running() -> None:
    with subprocess.Popen(["nohup", sys.executable, "-c", LINGER], stdout=subprocess.PIPE, stderr=-1) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == b"running\n"
        command.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            command.wait(0.2)
        command.terminate()
        assert command.wait() == 143


SAY = """
import sys
from ferrum.cli import main
from ferrum.cli.start import main as start
from ferrum.engine.progress import loading_bar

def run():
    with loading_bar("model"):
        print([sys.stdin.read(), "\u2588"])

main.main = run
start()
"""


@pytest.mark.parametrize(
    ("shell", "out"),
    [
        ("printf '\\xff' | PYTHONIOENCODING=latin-1:strict exec_python", b"['\xff', '?']\n"),
        ("printf '\\xff' | PYTHONIOENCODING=utf-8:strict exec_python", b"['\\udcff', '\xe2\x96\x88']\n"),
        ("exec_python <&- 2>&-", b"['', '\xe2\x96\x88']\n"),
        ("exec_python <&- >&-", b""),
    ],
)
def test_a_command_runs_with_any_standard_streams(shell: str, out: bytes) -> None:
    command = shell.replace("exec_python", '"$0" -c "$1"')
    done = subprocess.run(["bash", "-c", command, sys.executable, SAY], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, out, b"")
