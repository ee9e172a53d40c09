"""llama.cpp's HTTP server as a process of its own, from the wheel xllamacpp: a llama-server.

    python -m llmgw.apps.llama_server --model FILE --host H --port P [...]

The wheel (extra `llmgw[llamacpp]`) has the server inside but no executable. This module takes the
flags of llmgw's own plan and the few that small models need, and behaves as the real llama-server:
503 on the port while it loads, its key from LLAMA_API_KEY, exit status 1 and a sentence when it
cannot start, SIGTERM with its default action while loading and as a clean end after that. It is an
engine, not a daemon of llmgw: it reads an engine's variables, and of llmgw it imports nothing.
"""

import argparse
import importlib
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Final, NoReturn

SLOTS: Final = 4
"""What llama-server takes where nobody says: so many slots that share the whole context."""
PING_S: Final = 30
AUTO: Final = -1


class _Parser(argparse.ArgumentParser):
    """Exits with 1, as llama-server does, and says what it does take."""

    def error(self, message: str) -> NoReturn:
        _fail(f"{message}; another flag needs a llama-server of its own: install one, and name it "
              "in the agent's setting `engines`")  # fmt: skip


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Serve until SIGTERM or SIGINT; return the exit status."""
    given = _parser().parse_args(arguments)
    xllamacpp = _xllamacpp()
    if given.version:
        sys.stderr.write(f"version: xllamacpp {version('xllamacpp')}\n")
        return 0
    if given.model is None:
        _fail("no model: pass --model FILE")
    if not Path(given.model).is_file():
        _fail(f"failed to load model: there is no file {given.model}")
    # As the real one: while it loads, a signal has its default action (Python's own would wait).
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        server = xllamacpp.Server(_parameters(xllamacpp, given, environment))
    except RuntimeError:
        _fail(f"cannot serve {given.model} on {given.host}:{given.port}; the lines above say why")
    _until_signalled()
    # Waits for open streams, at most until their next ping; a second signal ends that.
    del server
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="llama_server", allow_abbrev=False)
    parser.add_argument("--version", action="store_true")
    parser.add_argument("-m", "--model")
    parser.add_argument("-a", "--alias")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("-c", "--ctx-size", type=int, default=0)
    parser.add_argument("-np", "--parallel", type=int)
    parser.add_argument("-ngl", "--gpu-layers", "--n-gpu-layers", type=int)
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--metrics", action="store_true")
    parser.add_argument("--no-slots", action="store_true")
    parser.add_argument("--embedding", "--embeddings", action="store_true")
    parser.add_argument("--pooling", choices=("none", "mean", "cls", "last", "rank"))
    return parser


def _xllamacpp() -> ModuleType:
    try:
        return importlib.import_module("xllamacpp")
    except ImportError as error:
        _fail(f"xllamacpp cannot be imported ({error}): pip install 'llmgw[llamacpp]'")


def _parameters(
    xllamacpp: ModuleType, given: argparse.Namespace, environment: Mapping[str, str]
) -> object:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = given.model
    parameters.hostnames = [given.host]
    parameters.port = given.port
    parameters.n_ctx = given.ctx_size
    parameters.n_parallel = given.parallel or SLOTS
    parameters.kv_unified = given.parallel is None
    parameters.endpoint_metrics = given.metrics
    parameters.endpoint_slots = not given.no_slots
    parameters.embedding = given.embedding
    parameters.ui = False
    parameters.sse_ping_interval = _number(environment, "LLAMA_ARG_SSE_PING_INTERVAL", PING_S)
    layers = given.gpu_layers
    if layers is None:
        layers = _number(environment, "LLAMA_ARG_N_GPU_LAYERS", AUTO)
    parameters.n_gpu_layers = layers
    if given.alias:
        parameters.model_alias = {given.alias}
    if given.threads:
        parameters.cpuparams.n_threads = given.threads
    if given.pooling:
        kinds = xllamacpp.llama_pooling_type
        parameters.pooling_type = kinds[f"LLAMA_POOLING_TYPE_{given.pooling.upper()}"]
    if key := environment.get("LLAMA_API_KEY"):
        parameters.api_keys = [key]
    return parameters


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, str(default))
    try:
        return int(text)
    except ValueError:
        _fail(f"{name} is {text!r}; write a whole number")


def _until_signalled() -> None:
    stop = threading.Event()
    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        signal.signal(number, lambda *_: stop.set())
    stop.wait()
    for number in signals:
        signal.signal(number, signal.SIG_DFL)


def _fail(sentence: str) -> NoReturn:
    sys.stderr.write(f"error: {sentence}\n")
    sys.exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
