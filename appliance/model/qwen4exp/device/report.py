"""What a model on cards says of itself: how its experts lie, what it learned of the routing, what memory it holds."""

from __future__ import annotations

import numpy as np

from appliance.model.expert_status import ExpertStatus
from appliance.model.plan import LoadPlan
from appliance.model.qwen4exp.device.held import held_bytes
from appliance.model.qwen4exp.device.loading import LoadedStages
from appliance.model.routing_profile import write_profile


class Report:
    """See `CardReport`."""

    def __init__(self, plan: LoadPlan, parts: LoadedStages, launcher: object) -> None:
        """Of these stages; `launcher` holds memory for windows too."""
        self._plan, self._parts, self._launcher = plan, parts, launcher

    def experts(self) -> ExpertStatus:
        """See `CardReport`; a stage that has all its experts on its card never misses, and is not asked."""
        stages = self._parts.stages
        stores = [stage.store for stage in stages if stage.store is not None]
        layers = sum(len(store.layers) for store in stores)
        swappers = [stage.swapper for stage in stages if stage.swapper is not None]
        rows = sum(one.heat.rows for one in swappers)
        return ExpertStatus(
            on_card=sum(store.hit_share * len(store.layers) for store in stores) / layers,
            hits=sum(one.heat.hits for one in swappers) / rows if rows else None,
            swaps=sum(one.swaps for one in swappers),
        )

    def remember(self) -> None:
        """See `CardReport`; nothing where no stage followed its routing."""
        stages = self._parts.stages
        if not self._plan.profile or all(stage.swapper is None for stage in stages):
            return
        heat = []
        for stage in stages:
            assert stage.store is not None
            shape = (len(stage.store.layers), stage.routing.experts)
            heat.append(np.zeros(shape, np.float32) if stage.swapper is None else stage.swapper.heat.heat)
        write_profile(self._plan.profile, np.concatenate(heat))

    def held(self) -> list[dict[str, int]]:
        """See `CardReport`."""
        return held_bytes(self._parts, self._launcher)
