"""The plan of an engine that has none yet: a refusal that says so."""

from llmgw.core.fleet.catalog import EngineKind, Problem
from llmgw.core.fleet.placement import Placement
from llmgw.engines.base import Plan, Refused


def refuse(placement: Placement) -> Plan:
    """Refuse any placement, and name what can be started instead."""
    what = f"this llmgw cannot start {placement.profile.engine} yet"
    remedy = f"write {EngineKind.LLAMACPP}, or keep the profile out until a version that can"
    return Refused((Problem("engine", what, remedy),))
