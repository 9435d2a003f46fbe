"""The `worldsmith` command: finds the subcommand, imports only its module, and exits with 2 after a user's mistake."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from worldsmith import __version__
from worldsmith.actions.registry import commands
from worldsmith.cli.commands import COMMANDS, read_command, split_tail
from worldsmith.distributed.launcher_messages import launcher_pid, was_printed

WITHOUT_ARGUMENTS = ("recipes",)
"""Commands that can run without arguments; all others print their help if no arguments are given."""
INTERRUPTED = 130
"""Exit code after Ctrl-C of a command that cannot be resumed."""
UNRELATED_WARNINGS = ("torchao", "torch.utils._pytree", "diffusers.quantizers.torchao.torchao_quantizer")
"""Loggers that warn when transformers imports an installed torchao, of kernels and formats that no command uses."""
PACKAGES = {
    "--import": "MODULE  import a module of recipes and components first (any number of times)",
    "--trust": "PACKAGE  allow files to name classes of this package (any number of times)",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: Arguments without the program name; None: `sys.argv[1:]`.

    Returns:
        Exit code: 0 done, 2 a mistake of the user, 130 interrupted, 141 the output pipe was closed, else that of the
        command.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    for name in UNRELATED_WARNINGS:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        try:
            code = dispatch(words)
        except SystemExit as stop:  # argparse: help is 0, a wrong flag is 2
            code = stop.code if isinstance(stop.code, int) else 2
        print(end="", flush=True)
        return code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader, such as `head`, has gone: no message would arrive
        discard_output()
        return 141
    except OSError as error:
        discard_output()
        return fail(f"standard output: {file_error(error)}")


def discard_output() -> None:
    """Redirects standard output to /dev/null, so that flushing it at exit cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def dispatch(words: list[str]) -> int:
    """Finds the command and runs it after the packages that it needs are imported; returns the exit code."""
    from worldsmith.monitor.terminal_text import print_text

    words, packages = take_packages(words)
    if not words or words[0] in ("-h", "--help", "help"):
        print_text(overview())
        return 0
    if words[0] in ("-V", "--version"):
        print(f"worldsmith {__version__}")
        return 0
    name = words[0]
    if name not in COMMANDS:
        return fail(f"there is no command '{name}'{_advice(name)}; commands: {', '.join(COMMANDS)}")
    return run_command(name, words[1:] or ["--help"] * (name not in WITHOUT_ARGUMENTS), packages)


def run_command(name: str, words: list[str], packages: Sequence[tuple[str, str]] = ()) -> int:
    """Imports the packages and the command's module, parses its arguments and runs it; returns the exit code.

    Args:
        name: Name of the command.
        words: Arguments after the name.
        packages: (option, value) of each ``--import`` and ``--trust``.
    """
    from worldsmith.files.errors import UserError, WorkerProcessError
    from worldsmith.monitor.terminal_text import format_last_resort

    format_last_resort()
    try:
        with interruptible(name):
            import_packages(packages)
            package_words = [word for option in packages for word in option]
            if name == "launch":
                return run_launch(words, package_words)
            if name in commands() and not commands()[name].about_run:
                from worldsmith.cli.action_command import run_action

                return run_action(name, *split_tail(words), package_words, start=run_launch)
            module, args = read_command(name, words)
            return int(module.run(args))
    except UserError as error:
        return fail(str(error))
    except WorkerProcessError as error:
        fail(str(error))
        return 1
    except BrokenPipeError:
        raise
    except OSError as error:
        return fail(file_error(error))


def run_launch(words: Sequence[str], packages: Sequence[str]) -> int:
    """Runs `worldsmith launch`, whose module is imported only here; returns the exit code.

    Args:
        words: Arguments after `launch`.
        packages: ``--import`` and ``--trust`` arguments, passed to each process.
    """
    from worldsmith.cli.launch import launch

    return launch(words, packages)


@contextmanager
def interruptible(name: str) -> Iterator[None]:
    """Context manager: sets the effect of Ctrl-C until the command `name` installs its own handler.

    `train`, `launch` and launched processes have no state to save yet and exit at once. Other commands get a
    KeyboardInterrupt and clean up. During an import, where that would crash compiled libraries, they exit at once too.
    """
    if name in ("train", "launch") or launcher_pid() is not None:
        from worldsmith.distributed.stop_signals import exit_when_asked

        with exit_when_asked():
            yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code.co_filename.startswith("<frozen importlib"):
                exit_interrupted()
            frame = frame.f_back
        raise KeyboardInterrupt

    try:
        former = signal.signal(signal.SIGINT, interrupt)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)


def exit_interrupted() -> None:
    """Exits the process at once with the code for an interrupt, without cleanup."""
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


def take_packages(words: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Returns the arguments without ``--import MODULE`` and ``--trust PACKAGE``, and these as (option, value) in order.

    All commands accept them, anywhere before ``--``.
    """
    head, tail = split_tail(words)
    rest: list[str] = []
    found: list[tuple[str, str]] = []
    pending = iter(head)
    for word in pending:
        option, equals, value = word.partition("=")
        if option not in PACKAGES:
            rest.append(word)
            continue
        found.append((option, value if equals else next(pending, "")))
    return rest + (["--", *tail] if len(head) < len(words) else []), found


def import_packages(packages: Sequence[tuple[str, str]]) -> None:
    """Imports the modules of ``--import`` and trusts the packages of ``--trust``.

    Args:
        packages: (option, value) of each of these options, in order.

    Raises:
        ConfigError: If a module cannot be imported.
        UserError: If a name is missing or a package cannot be trusted.
    """
    from worldsmith.config.errors import UserError

    for option, name in packages:
        if not name or name.startswith("-"):
            raise UserError(f"{option} needs a name: {option} {PACKAGES[option].partition(' ')[0]}")
        if option == "--import":
            from worldsmith.config.recipes.packages import import_recipes

            import_recipes(name)
            continue
        from worldsmith.config.declare.class_tags import trust
        from worldsmith.config.recipes.packages import search_here

        try:
            trust(name)
            search_here()
        except ValueError as error:
            raise UserError(str(error)) from None


def overview() -> str:
    """Returns the text of `worldsmith --help`."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "usage: worldsmith COMMAND …",
            "",
            "Fine-tuning for world models, from one typed config.",
            "",
            "commands:",
            *lines,
            "",
            "for every command:",
            *(f"  {option} {text}" for option, text in PACKAGES.items()),
            "",
            "worldsmith COMMAND --help   arguments and flags of a command",
            "worldsmith --version        the version",
        ]
    )


def file_error(error: OSError) -> str:
    """Formats an OSError as one line with its file names."""
    if error.strerror is None:
        return str(error)  # a message of a library or of this package
    names = [str(name) for name in (error.filename, error.filename2) if name is not None]
    return f"{error.strerror}{': ' if names else ''}{' -> '.join(names)}"


def fail(message: str) -> int:
    """Prints an error message, unless another process of the same launch has printed it; returns exit code 2."""
    if not was_printed(message):
        from worldsmith.monitor.terminal_text import print_message

        print_message(f"worldsmith: error: {message}")
    return 2


def _advice(name: str) -> str:
    from worldsmith.config.tree.suggest import did_you_mean

    advice = did_you_mean(name, COMMANDS)
    return f"; {advice}" if advice else ""


if __name__ == "__main__":
    sys.exit(main())
