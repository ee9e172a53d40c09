"""Which engines there are."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from llmgw.core.fleet.catalog import EngineKind
from llmgw.engines.base import Engine
from llmgw.engines.llamacpp import LLAMACPP
from llmgw.engines.sglang import SGLANG
from llmgw.engines.vllm import VLLM

ENGINES: Final[Mapping[EngineKind, Engine]] = MappingProxyType(
    {engine.kind: engine for engine in (LLAMACPP, VLLM, SGLANG)}
)
