"""SGLang: its scheduler, by the names of its published source; see the guide for what was and was not run.

The event loop calls ``get_next_batch_to_run``, ``run_batch`` and ``process_batch_result`` (the overlapped loop
processes the results of the batch before): a step begins with the first and ends with the last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from rooflight.studies.inference.engines.mapping import (
    Bucket,
    Call,
    Does,
    EngineMapping,
    EngineSteps,
    Reads,
    Run,
    bucket_of_phase,
    tell_requests,
)


def _next(call: Call) -> str | None:
    """Nothing to run: not a step, unless results of the batch before are processed in it."""
    batch = getattr(call.result, "batch_to_run", call.result)
    return "idle" if batch is None else None


def _phase_of(batch: Any) -> str:
    mode = batch.forward_mode
    if mode.is_idle():
        return "idle"
    if getattr(mode, "is_mixed", bool)():
        return "mixed"
    return "prefill" if mode.is_extend() else "decode"


def _runs(call: Call) -> str:
    phase = call.notes["phase"] = _phase_of(call.argument(0, "batch"))
    return phase


def _processes(call: Call) -> str | None:
    """What is processed gives the phase where nothing new runs; the tokens are those that its requests get."""
    batch = call.argument(0, "batch")
    call.notes["requests"] = [(request, len(request.output_ids)) for request in batch.reqs]
    return None if "phase" in call.notes else _phase_of(batch)


def _tokens(call: Call) -> int:
    return sum(len(request.output_ids) - before for request, before in call.notes["requests"])


def _kv_lengths(call: Call) -> Any:
    """Before the step: of prompts what is cached already. In decode steps without a draft, ``seq_lens`` has the token
    of the step already.
    """
    batch = call.argument(0, "batch")
    if batch.forward_mode.is_extend():
        return list(batch.prefix_lens) or None
    lengths = getattr(batch, "seq_lens_cpu", None)
    lengths = batch.seq_lens if lengths is None else lengths
    return lengths - 1 if batch.spec_algorithm.is_none() else lengths


def _sequences(call: Call) -> int | None:
    return len(call.argument(0, "batch").reqs) or None


def _drafted(call: Call) -> None:
    """A tree of ``draft_token_num`` nodes with its root, which is the last token, not a draft."""
    call.notes["draft"] = (call.result.draft_token_num - 1, call.result.spec_steps)


def _drafts(call: Call) -> tuple[Any, ...] | None:
    """Draft tokens accepted per request: in the first worker a list, in the second a tensor with the target's own."""
    if "draft" not in call.notes:
        return None
    result = call.result[1] if isinstance(call.result, tuple) else call.result
    accepted = None
    for name in ("accept_length_per_req_cpu", "num_correct_drafts_per_req_cpu"):
        accepted = getattr(result, name, None) if accepted is None else accepted
    if accepted is None:
        with_bonus = getattr(result, "accept_lens", None)
        accepted = None if with_bonus is None else with_bonus - 1
    if accepted is None or not len(accepted):
        return None
    nodes, depth = call.notes["draft"]
    return nodes, accepted, min(nodes, depth)


def _arrives(steps: EngineSteps, call: Call) -> None:
    """A request is put into the queue; again, if it was retracted."""
    request = call.argument(0, "req")
    if not call.argument(1, "is_retracted", default=False):
        steps.profiler.begin_request(request.rid, len(request.origin_input_ids))


@dataclass(frozen=True, slots=True)
class _Processes(Bucket):
    def leave(self, steps: EngineSteps, call: Call, *, raised: bool) -> None:
        requests = () if raised else call.notes.get("requests", ())  # ends the step, which forgets them
        for request, before in requests:
            tokens = len(request.output_ids) - before
            if tokens:
                tell_requests(steps, request.rid, tokens, done=request.finished())
        Bucket.leave(self, steps, call, raised=raised)


_DRAFTER: Final = "draft_worker._draft_worker"

SGLANG: Final = EngineMapping(
    name="sglang",
    methods={
        "event_loop_normal": Run(label="event loop", optional=True),
        "event_loop_overlap": Run(label="event loop", optional=True),
        "get_next_batch_to_run": Bucket("schedule", begins_step=True, after=Reads(phase=_next)),
        "run_batch": Bucket(bucket_of_phase, before=Reads(phase=_runs, kv_lengths=_kv_lengths, batch=_sequences)),
        "_add_request_to_queue": Does(called=_arrives, optional=True),
        "process_batch_result": _Processes(
            "postproc", ends_step=True, before=Reads(phase=_processes), after=Reads(tokens=_tokens)
        ),
        "tp_worker.model_runner.sample": Bucket("sampler", optional=True),
        f"draft_worker.draft|{_DRAFTER}.draft": Bucket("draft", after=Reads(drafts=_drafted), optional=True),
        "draft_worker.verify": Bucket("verify", after=Reads(drafts=_drafts), optional=True),
        f"draft_worker.forward_draft_extend|{_DRAFTER}._draft_extend_for_prefill": Bucket("draft", optional=True),
        f"draft_worker.forward_draft_extend_after_decode|{_DRAFTER}._draft_extend_for_decode": Bucket(
            "draft", optional=True
        ),
    },
    classes=("sglang.srt.managers.scheduler.Scheduler",),
    about="SGLang's Scheduler",
)
