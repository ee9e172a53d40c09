"""SGLang, as far as llmgw knows it yet: its kind is known, but it is not started."""

import re
from typing import Final

from llmgw.core.fleet.catalog import EngineKind
from llmgw.engines.base import Engine
from llmgw.engines.unplanned import refuse

SGLANG: Final = Engine(
    kind=EngineKind.SGLANG,
    programs=("sglang",),
    plan=refuse,
    # Other ranks have a stand-in server whose 200 says nothing about the model.
    serves_http=lambda node_rank: node_rank == 0,
    version_pattern=re.compile(r"sglang\D*(\d+\.\d+\S*)"),
    # No variable: SGLang reads its key from the command line or a configuration file only.
)
