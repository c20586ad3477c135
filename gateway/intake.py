"""What every new job passes before it is posted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.requests import Request

from headway.gateway.answer_form import AnswerForm
from headway.gateway.errors import shutting_down
from headway.gateway.gateway import Gateway
from headway.gateway.job_fields import FieldNames, openai_fields
from headway.gateway.model_directory import Formats
from headway.gateway.openai_styles import Envelope
from headway.gateway.request_record import record_of
from headway.queueing.messages import Job


async def check_admission(
    gateway: Gateway, request: Request, jobs: Sequence[Job], *, constraint_param: str | None = None
) -> None:
    """Note the jobs for the log; raises ApiError 503 while the gateway drains, 404 for an unknown model.

    And 400 for a constraint that no answer can be held to; ``constraint_param`` is the field that asks for
    it.
    """
    record_of(request.scope).about(jobs)
    if gateway.stopping.is_draining:
        raise shutting_down()
    await gateway.models.require(jobs[0].model)
    await gateway.constraints.check(jobs, constraint_param)


async def admit(
    gateway: Gateway,
    request: Request,
    jobs: Sequence[Job],
    *,
    wants_logprobs: bool,
    echoed: tuple[str, ...] = (),
    form: Callable[[Formats], AnswerForm] | None = None,
    constraint_param: str | None = None,
    names: FieldNames | None = None,
) -> Envelope:
    """What the answer's objects share, for jobs that may be posted; raises as ``check_admission``.

    ``form``: how the answers are read, given how the model writes. ``names``: what the request calls the
    jobs' fields, if it is neither chat nor completions.
    """
    await check_admission(gateway, request, jobs, constraint_param=constraint_param)
    return Envelope(
        model=jobs[0].model,
        created_unix=int(gateway.wall_clock()),
        fingerprint=f"headway-{gateway.settings.version}",
        wants_logprobs=wants_logprobs,
        choices_per_prompt=jobs[0].sampling.n,
        echoed=echoed,
        form=AnswerForm() if form is None else form(gateway.models.formats(jobs[0].model)),
        names=openai_fields(constraint_param) if names is None else names,
    )
