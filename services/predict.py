"""A worker's run as a simulation predicts it: the same settings, the same requests, a calibrated device."""

from __future__ import annotations

from collections.abc import Sequence

from headway.services.arrivals import lognormal_lengths
from headway.services.settings import WorkerSettings
from headway.services.simulate import simulation
from headway.services.simulate_settings import SimulateSettings
from headway.services.simulated_device import Device
from headway.services.simulated_tenants import ONE_TENANT
from headway.services.simulation_report import Limits
from headway.services.simulation_run import SimulationRun
from headway.services.traffic import Demand


def predict(
    worker: WorkerSettings, device: Device, demands: Sequence[Demand], limits: Limits
) -> SimulationRun:
    """What a worker of these settings makes of the demands; requests ask for what they will get.

    ``limits``: what the run is judged by; a worker with --ttft and --tpot has its own to end steps in time.
    """
    is_timed = worker.ttft_seconds is not None and worker.tpot_seconds is not None
    settings = SimulateSettings(
        policies=(worker.policy,),
        fair=worker.fair,
        batch_window_seconds=worker.batch_window_seconds,
        kv_tokens=device.kv_tokens,
        is_overcommitted=worker.is_overcommitted,
        block_size=worker.block_size,
        max_sequences=worker.max_sequences,
        max_batch_tokens=worker.max_batch_tokens,
        ttft_seconds=worker.ttft_seconds if worker.ttft_seconds is not None else limits.ttft_seconds,
        tpot_seconds=worker.tpot_seconds if worker.tpot_seconds is not None else limits.tpot_seconds,
        timed_classes=1 if is_timed else 0,
    )
    return simulation(
        settings,
        worker.policy,
        device=device,
        demands=list(demands),
        tenants=ONE_TENANT,
        draw=lognormal_lengths(settings.prompt_tokens, settings.answer_tokens),
        knows_lengths=True,
    ).run()
