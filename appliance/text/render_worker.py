"""The process that runs a chat template, so that nothing in one can hang, fill or reach the server.

It is started by path in isolated mode and imports jinja2 and the standard library only. What bounds a template:
an immutable sandbox (no private attributes, no writes); an alarm that ends the process; a limit on its address space; a
limit on output characters; and no new files, sockets or processes once it is warm. Frames on stdin and
stdout are 8 bytes of length (little endian) and JSON. The first frame holds the source, each later one the variables.
"""

from __future__ import annotations

import datetime
import json
import resource
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Refusal(Exception):
    """The template called raise_exception: the conversation is not one it can show."""


class Generation(Extension):
    """`{% generation %}` marks assistant text for training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012 - the name and type are jinja2's

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Returns the body alone."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    """Refuses at the attempt, where jinja2's own would go on with an undefined value."""

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Raises SecurityError."""
        raise SecurityError(f"access to attribute {attribute!r:.60} of {type(obj).__name__!r} is unsafe")


def to_json(value: Any, **options: Any) -> str:
    """As chat templates expect it: no HTML escapes, text as it is."""
    return json.dumps(value, **{"ensure_ascii": False, **options})


def strftime_now(pattern: str) -> str:
    """The local time."""
    return datetime.datetime.now().strftime(pattern)


def raise_exception(message: object) -> NoReturn:
    """What templates call for a conversation they do not accept."""
    raise Refusal(str(message))


def environment() -> Sandbox:
    """The engine with the extras that chat templates use."""
    made = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation])
    made.filters["tojson"] = to_json
    made.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)
    return made


def render(template: Template, variables: dict[str, Any], max_chars: int) -> dict[str, str]:
    """{"text"} or {"error", "kind"}."""
    pieces: list[str] = []
    total = 0
    for piece in template.generate(variables):  # not as keywords: a variable may be called self
        total += len(piece)
        if total > max_chars:
            return {"kind": "limit", "error": f"the output is longer than {max_chars} characters"}
        pieces.append(piece)
    return {"text": "".join(pieces)}


def compiled(engine: Sandbox, source: str) -> tuple[Template | None, dict[str, str]]:
    """The template and the answer to its frame; compiling can run constant parts, so it is bounded as well."""
    made: list[Template] = []

    def work() -> dict[str, str]:
        made.append(engine.from_string(source))
        return {"text": ""}

    answer = guarded(work)
    return (made[0] if made else None), answer


def guarded(work: Callable[[], dict[str, str]]) -> dict[str, str]:
    """Runs work; every exception becomes an answer."""
    try:
        return work()
    except Refusal as error:
        return {"kind": "refused", "error": str(error)}
    except SecurityError as error:
        return {"kind": "security", "error": str(error)}
    except (MemoryError, RecursionError, OverflowError) as error:
        return {"kind": "limit", "error": f"it needs more than it may have ({type(error).__name__})"}
    except TemplateError as error:
        return {"kind": "template", "error": f"{type(error).__name__}: {error}"}
    except Exception as error:
        return {"kind": "template", "error": f"{type(error).__name__}: {error}"}


def read_frame() -> Any:
    """The next frame, None at the end."""
    head = sys.stdin.buffer.read(8)
    if len(head) < 8:
        return None
    return json.loads(sys.stdin.buffer.read(int.from_bytes(head, "little")))


def write_frame(value: object) -> None:
    """Sends one frame."""
    body = json.dumps(value).encode("ascii")
    sys.stdout.buffer.write(len(body).to_bytes(8, "little") + body)
    sys.stdout.buffer.flush()


def lock_down(memory_bytes: int) -> None:
    """From here on: no more memory than this, no file, no process."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main(memory_bytes: int, deadline_s: float, max_chars: int) -> None:
    """Serves frames until stdin ends."""
    engine = environment()
    # One render before the doors close: whatever the engine imports late is then loaded.
    guarded(lambda: render(engine.from_string("{{ x | tojson }}{{ strftime_now('%c') }}{{ y.z.q }}"), {"x": ["é"]}, 99))
    lock_down(memory_bytes)
    template: Template | None = None
    while (frame := read_frame()) is not None:
        # The default action of SIGALRM ends the process, inside C code too.
        signal.setitimer(signal.ITIMER_REAL, deadline_s)
        if template is None:
            template, answer = compiled(engine, frame["source"])
        else:
            answer = guarded(partial(render, template, frame, max_chars))
        signal.setitimer(signal.ITIMER_REAL, 0)
        write_frame(answer)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
