"""How the commands are typed that work on an `llmgw up`: exact, for whoever reads a sentence."""

import shlex

from llmgw.config.loader import Surroundings, state_dir
from llmgw.config.settings import CTL_FILE, UpSettings


def ctl(settings: UpSettings, around: Surroundings) -> str:
    """Return what to type to operate it."""
    if _is_found(settings, around):
        return f"{around.program} ctl"
    return f"{around.program} ctl --config {shlex.quote(str(settings.state_dir / CTL_FILE))}"


def down(settings: UpSettings, around: Surroundings) -> str:
    """Return what to type to stop it."""
    if _is_found(settings, around):
        return f"{around.program} down"
    return f"{around.program} down --state-dir {shlex.quote(str(settings.state_dir))}"


def _is_found(settings: UpSettings, around: Surroundings) -> bool:
    return settings.state_dir == state_dir("up", around)
