"""Stands in for vLLM's V1 engine core: classes, methods, arguments and results have the names of its published source.
Each call takes a time that is written here; no model runs.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field, make_dataclass
from types import SimpleNamespace

NewRequestData = make_dataclass("NewRequestData", ["req_id", "num_computed_tokens"])
SchedulerOutput = make_dataclass(
    "SchedulerOutput",
    ["scheduled_new_reqs", "scheduled_cached_reqs", "num_scheduled_tokens", "total_num_scheduled_tokens",
     "scheduled_spec_decode_tokens"],
)  # fmt: skip
ModelRunnerOutput = make_dataclass("ModelRunnerOutput", ["req_ids", "req_id_to_index", "sampled_token_ids"])
EngineCoreOutput = make_dataclass("EngineCoreOutput", ["request_id", "new_token_ids", "finish_reason"])
EngineCoreOutputs = make_dataclass("EngineCoreOutputs", [("outputs", list, field(default_factory=list))])


@dataclass
class CachedRequestData:
    req_ids: list[str]
    num_computed_tokens: list[int]
    num_output_tokens: list[int]

    def is_context_phase(self, req_id: str) -> bool:
        return self.num_output_tokens[self.req_ids.index(req_id)] == 0


@dataclass
class Request:
    request_id: str
    prompt: int
    max_tokens: int
    computed: int = 0
    output: int = 0
    spec_token_ids: list[int] = field(default_factory=list)

    @property
    def num_prompt_tokens(self) -> int:
        return self.prompt


class Scheduler:
    """Gives each step ``budget`` tokens."""

    def __init__(self, work, budget: int, tree: str | None) -> None:
        self.work, self.budget = work, budget
        self.vllm_config = SimpleNamespace(speculative_config=SimpleNamespace(speculative_token_tree=tree))
        self.requests: dict[str, Request] = {}
        self.running: list[str] = []

    def add_request(self, request: Request) -> None:
        self.requests[request.request_id] = request

    def finish_requests(self, request_ids, finished_status) -> None:
        for name in [request_ids] if isinstance(request_ids, str) else request_ids:
            self.requests.pop(name, None)

    def has_requests(self) -> bool:
        return bool(self.requests)

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        self.work(1_000_000)
        new, cached, numbers, drafts = [], CachedRequestData([], [], []), {}, {}
        budget = self.budget
        for name, request in self.requests.items():
            left = request.prompt + request.output - request.computed
            count = min(left + len(request.spec_token_ids), budget)
            if not count:
                continue
            budget -= count
            numbers[name] = count
            if request.spec_token_ids:
                drafts[name] = request.spec_token_ids
            if name in self.running:
                cached.req_ids.append(name)
                cached.num_computed_tokens.append(request.computed)
                cached.num_output_tokens.append(request.output)
            else:
                self.running.append(name)
                new.append(NewRequestData(name, request.computed))
            request.computed += count
        return SchedulerOutput(new, cached, numbers, sum(numbers.values()), drafts)

    def get_grammar_bitmask(self, scheduler_output):
        return None

    def update_from_output(self, scheduler_output, model_runner_output):
        self.work(1_000_000)
        outputs = EngineCoreOutputs()
        for name in scheduler_output.num_scheduled_tokens:
            request = self.requests[name]
            tokens = model_runner_output.sampled_token_ids[model_runner_output.req_id_to_index[name]]
            draft = scheduler_output.scheduled_spec_decode_tokens.get(name)
            if draft and tokens:
                request.computed -= len(draft) - (len(tokens) - 1)
            if tokens:
                del tokens[request.max_tokens - request.output :]
                request.output += len(tokens)
                done = "length" if request.output >= request.max_tokens else None
                outputs.outputs.append(EngineCoreOutput(name, tokens, done))
            if request.output >= request.max_tokens:
                del self.requests[name]
                self.running.remove(name)
        return {0: outputs}


class GPUModelRunner:
    """Proposes ``drafts`` tokens a round, of which ``accepts`` are right."""

    def __init__(self, work, requests, drafts: int, accepts: int) -> None:
        self.work, self.requests = work, requests
        self.drafts, self.accepts = drafts, accepts
        self.execute_model_state = None

    def execute_model(self, scheduler_output, intermediate_tensors=None):
        self._prepare_inputs(scheduler_output, None)
        self.work(5_000_000)
        self.execute_model_state = scheduler_output

    def _prepare_inputs(self, scheduler_output, num_scheduled_tokens):
        self.work(500_000)
        return None, None, None

    def sample_tokens(self, grammar_output):
        scheduler_output, self.execute_model_state = self.execute_model_state, None
        sampled = self._sample(scheduler_output, None)
        self._bookkeeping_sync(scheduler_output, sampled)
        if self.drafts:
            self.propose_draft_token_ids(scheduler_output, sampled)
        names = list(scheduler_output.num_scheduled_tokens)
        return ModelRunnerOutput(names, {name: place for place, name in enumerate(names)}, sampled)

    def _sample(self, logits, spec_decode_metadata):
        self.work(250_000)
        sampled = []
        for name in logits.num_scheduled_tokens:
            request = self.requests[name]
            draft = logits.scheduled_spec_decode_tokens.get(name, [])
            done = request.computed >= request.prompt + request.output
            sampled.append([7] * (1 + min(self.accepts, len(draft))) if done else [])
        return sampled

    def _bookkeeping_sync(self, scheduler_output, sampler_output):
        self.work(250_000)

    def propose_draft_token_ids(self, scheduler_output, sampled_token_ids):
        self.work(2_000_000)
        for name, tokens in zip(scheduler_output.num_scheduled_tokens, sampled_token_ids, strict=True):
            self.requests[name].spec_token_ids = [1] * self.drafts if tokens else []


class UniProcExecutor:
    def __init__(self, model_runner) -> None:
        self.driver_worker = SimpleNamespace(worker=SimpleNamespace(model_runner=model_runner))

    def execute_model(self, scheduler_output, non_block=False):
        future: Future = Future()
        future.set_result(self.driver_worker.worker.model_runner.execute_model(scheduler_output))
        return future if non_block else future.result()

    def sample_tokens(self, grammar_output, non_block=False):
        return self.driver_worker.worker.model_runner.sample_tokens(grammar_output)


class EngineCore:
    def __init__(self, work, *, budget=16, drafts=0, accepts=0, tree=None) -> None:
        self.scheduler = Scheduler(work, budget, tree)
        runner = GPUModelRunner(work, self.scheduler.requests, drafts, accepts)
        self.model_executor = UniProcExecutor(runner)
        self.step_fn = self.step

    def add_request(self, request: Request) -> None:
        self.scheduler.add_request(request)

    def step(self):
        if not self.scheduler.has_requests():
            return {}, False
        scheduler_output = self.scheduler.schedule(False)
        future = self.model_executor.execute_model(scheduler_output, non_block=True)
        grammar_output = self.scheduler.get_grammar_bitmask(scheduler_output)
        model_output = future.result()
        if model_output is None:
            model_output = self.model_executor.sample_tokens(grammar_output)
        outputs = self.scheduler.update_from_output(scheduler_output, model_output)
        return outputs, scheduler_output.total_num_scheduled_tokens > 0


class InprocClient:
    def __init__(self, engine_core: EngineCore) -> None:
        self.engine_core = engine_core

    def get_output(self):
        outputs, _ = self.engine_core.step_fn()
        return outputs.get(0) or EngineCoreOutputs()


class LLMEngine:
    def __init__(self, engine_core: EngineCore, *, in_process: bool = True) -> None:
        self.engine_core = InprocClient(engine_core) if in_process else SimpleNamespace()


class LLM:
    def __init__(self, engine_core: EngineCore, *, in_process: bool = True) -> None:
        self.llm_engine = LLMEngine(engine_core, in_process=in_process)

    def generate(self, core: EngineCore) -> dict[str, int]:
        tokens: dict[str, int] = {}
        while core.scheduler.has_requests():
            for each in self.llm_engine.engine_core.get_output().outputs:
                tokens[each.request_id] = tokens.get(each.request_id, 0) + len(each.new_token_ids)
        return tokens


EngineCore.__module__ = "vllm.v1.engine.core"
LLMEngine.__module__ = "vllm.v1.engine.llm_engine"
LLM.__module__ = "vllm.entrypoints.llm"
