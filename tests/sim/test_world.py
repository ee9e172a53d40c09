import pytest

from llmgw.testing.world import World

STEPS = 500


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_lost_or_duplicated_and_when_faults_end_what_is_wanted_runs(seed: int) -> None:
    world = World(seed)
    for _ in range(STEPS):
        world.step()
    world.calm()
    world.require_settled()


@pytest.mark.parametrize("seed", range(8))
def test_the_same_without_a_store(seed: int) -> None:
    world = World(seed, stored=False)
    for _ in range(STEPS):
        world.step()
    world.calm()
    world.require_settled()
