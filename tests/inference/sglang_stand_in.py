"""Stands in for SGLang's scheduler and its EAGLE workers: classes, methods, arguments and results have the names of its
published source (the first worker's, and the second's). Each call takes a time that is written here; no model runs.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, make_dataclass
from enum import Enum, auto
from types import SimpleNamespace

import torch


class ForwardMode(Enum):
    EXTEND = auto()
    DECODE = auto()
    MIXED = auto()
    IDLE = auto()
    TARGET_VERIFY = auto()

    def is_extend(self) -> bool:
        return self in (ForwardMode.EXTEND, ForwardMode.MIXED, ForwardMode.TARGET_VERIFY)

    def is_decode(self) -> bool:
        return self is ForwardMode.DECODE

    def is_mixed(self) -> bool:
        return self is ForwardMode.MIXED

    def is_idle(self) -> bool:
        return self is ForwardMode.IDLE


@dataclass
class Req:
    rid: str
    prompt: int
    max_new_tokens: int
    output_ids: list[int] = field(default_factory=list)

    @property
    def origin_input_ids(self) -> list[int]:
        return [1] * self.prompt

    def finished(self) -> bool:
        return len(self.output_ids) >= self.max_new_tokens


@dataclass
class ScheduleBatch:
    reqs: list[Req]
    forward_mode: ForwardMode
    spec_algorithm: SimpleNamespace
    seq_lens: torch.Tensor
    seq_lens_cpu: torch.Tensor
    prefix_lens: list[int] = field(default_factory=list)
    spec_info: object = None

    def copy(self) -> ScheduleBatch:
        return ScheduleBatch(list(self.reqs), self.forward_mode, self.spec_algorithm, self.seq_lens, self.seq_lens_cpu)


GenerationBatchResult = make_dataclass(
    "GenerationBatchResult",
    ["next_token_ids", ("num_accepted_tokens", int, 0), ("accept_lens", object, None)],
)
EagleVerifyInput = make_dataclass("EagleVerifyInput", ["draft_token_num", "spec_steps", "topk"])


class ModelRunner:
    def __init__(self, work) -> None:
        self.work = work

    def forward(self, forward_batch):
        self.work(4_000_000)

    def sample(self, logits_output, forward_batch):
        self.work(500_000)
        return [[7] for _ in forward_batch.reqs]


class TpModelWorker:
    def __init__(self, work) -> None:
        self.model_runner = ModelRunner(work)

    def forward_batch_generation(self, batch, is_verify=False):
        self.model_runner.forward(batch)
        if is_verify:
            return None
        return GenerationBatchResult(self.model_runner.sample(None, batch))


class EAGLEWorker:
    """The first worker: ``verify`` returns the numbers of accepted draft tokens in a list."""

    def __init__(self, work, target_worker, accepts, *, nodes, steps, topk) -> None:
        self.work, self.target_worker, self.accepts = work, target_worker, accepts
        self.speculative_num_draft_tokens, self.speculative_num_steps, self.topk = nodes, steps, topk

    def forward_batch_generation(self, batch):
        if batch.forward_mode.is_extend():
            result = self.target_worker.forward_batch_generation(batch)
            self.forward_draft_extend(batch, None, result.next_token_ids, None)
            return result
        spec_info = self.draft(batch)
        _logits, verified, _worker_batch, _graph = self.verify(batch, spec_info)
        self.forward_draft_extend_after_decode(batch)
        accepted = verified.accept_length_per_req_cpu
        return GenerationBatchResult([[7] * (count + 1) for count in accepted], num_accepted_tokens=sum(accepted))

    def draft(self, batch):
        self.work(2_000_000)
        return EagleVerifyInput(self.speculative_num_draft_tokens, self.speculative_num_steps, self.topk)

    def verify(self, batch, spec_info):
        batch.forward_mode = ForwardMode.TARGET_VERIFY
        self.target_worker.forward_batch_generation(batch, is_verify=True)
        batch.forward_mode = ForwardMode.DECODE
        accepted = [self.accepts] * len(batch.reqs)
        return None, SimpleNamespace(verified_id=None, accept_length_per_req_cpu=accepted), None, False

    def forward_draft_extend(self, batch, hidden_states, next_token_ids, seq_lens_cpu):
        self.work(1_000_000)

    def forward_draft_extend_after_decode(self, batch):
        self.work(1_000_000)


class EagleDraftWorker:
    def __init__(self, work, first) -> None:
        self.work, self.first = work, first

    def draft(self, batch):
        return self.first.draft(batch)

    def _draft_extend_for_prefill(self, batch, hidden_states, next_token_ids):
        self.work(1_000_000)

    def _draft_extend_for_decode(self, batch, result):
        self.work(1_000_000)


class EAGLEWorkerV2:
    """The second worker: ``verify`` returns accepted tokens with the target's own, in a tensor."""

    def __init__(self, work, target_worker, accepts, **sizes) -> None:
        self.target_worker, self.accepts = target_worker, accepts
        self._draft_worker = EagleDraftWorker(work, EAGLEWorker(work, target_worker, accepts, **sizes))

    def forward_batch_generation(self, batch):
        if batch.forward_mode.is_extend():
            result = self.target_worker.forward_batch_generation(batch)
            self._draft_worker._draft_extend_for_prefill(batch, None, result.next_token_ids)
            return result
        batch.spec_info = self._draft_worker.draft(batch)
        result = self.verify(batch)
        self._draft_worker._draft_extend_for_decode(batch, result)
        return result

    def verify(self, batch):
        self.target_worker.forward_batch_generation(batch, is_verify=True)
        lens = torch.full((len(batch.reqs),), self.accepts + 1)
        batch.spec_info = None
        return GenerationBatchResult([[7] * int(count) for count in lens], accept_lens=lens)


class Scheduler:
    """Prefills all waiting requests at once, then decodes; ``passes`` of the loop. ``plan``: as in newer sources, what
    is next is in a plan.
    """

    def __init__(self, work, requests, *, passes, plan=True, worker=None, mixed=False, **sizes) -> None:
        self.work, self.waiting_queue, self.passes = work, list(requests), passes
        self.running: list[Req] = []
        self.plan, self.mixed = plan, mixed
        self.tp_worker = TpModelWorker(work)
        self.draft_worker = worker(work, self.tp_worker, sizes.pop("accepts"), **sizes) if worker else None
        self.model_worker = self.draft_worker or self.tp_worker
        self.spec_algorithm = SimpleNamespace(is_none=lambda: worker is None)
        self.last_batch = None
        self.result_queue: deque = deque()
        self.arriving: list[Req] = []

    def _add_request_to_queue(self, req, is_retracted=False) -> None:
        self.waiting_queue.append(req)

    def event_loop_normal(self) -> None:
        for _ in range(self.passes):
            self.recv()
            batch = self._next()
            if batch:
                self.process_batch_result(batch, self.run_batch(batch))
            self.last_batch = batch

    def event_loop_overlap(self) -> None:
        for _ in range(self.passes):
            self.recv()
            batch = self._next()
            if batch:
                self.result_queue.append((batch.copy(), self.run_batch(batch)))
            if self.last_batch:
                self.process_batch_result(*self.result_queue.popleft())
            self.last_batch = batch

    def recv(self) -> None:
        self.work(10_000_000)  # outside of steps
        while self.arriving:
            self._add_request_to_queue(self.arriving.pop(0))

    def _next(self):
        found = self.get_next_batch_to_run(running_batch=None, last_batch=self.last_batch)
        return found.batch_to_run if self.plan else found

    def get_next_batch_to_run(self, running_batch=None, last_batch=None):
        self.work(1_000_000)
        batch = self._batch()
        return SimpleNamespace(batch_to_run=batch, running_batch=running_batch) if self.plan else batch

    def _batch(self):
        self.running = [each for each in self.running if not each.finished()]
        if self.waiting_queue:
            new, self.waiting_queue = self.waiting_queue[:1], self.waiting_queue[1:]
            mode = ForwardMode.MIXED if self.mixed and self.running else ForwardMode.EXTEND
            reqs = new + (self.running if mode is ForwardMode.MIXED else [])
            self.running += new
        elif self.running:
            mode, reqs = ForwardMode.DECODE, list(self.running)
        else:
            return None
        lengths = torch.tensor([req.prompt + max(len(req.output_ids), 1) - 1 for req in reqs])
        if mode.is_decode() and self.spec_algorithm.is_none():
            lengths = lengths + 1  # prepare_for_decode
        prefix = [0 if not req.output_ids else req.prompt + len(req.output_ids) - 1 for req in reqs]
        return ScheduleBatch(reqs, mode, self.spec_algorithm, lengths, lengths.clone(), prefix)

    def run_batch(self, batch):
        return self.model_worker.forward_batch_generation(batch)

    def process_batch_result(self, batch, result):
        self.work(1_000_000)
        for req, tokens in zip(batch.reqs, result.next_token_ids, strict=True):
            if not req.finished():
                req.output_ids.extend(tokens)
                del req.output_ids[req.max_new_tokens :]


Scheduler.__module__ = "sglang.srt.managers.scheduler"
