"""vLLM, as far as llmgw knows it yet: found and named on nodes, but not started."""

import re
from typing import Final

from llmgw.core.fleet.catalog import EngineKind
from llmgw.engines.base import Engine
from llmgw.engines.unplanned import refuse

VLLM: Final = Engine(
    kind=EngineKind.VLLM,
    programs=("vllm",),
    plan=refuse,
    # Data-parallel and headless nodes answer nothing: only the head serves.
    serves_http=lambda node_rank: node_rank == 0,
    version_pattern=re.compile(r"^v?(\d+\.\d+\S*)\s*$", re.MULTILINE),
    key_variable="VLLM_API_KEY",
)
