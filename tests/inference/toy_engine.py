"""Engines of the tests: methods that take the time that a test says."""

from __future__ import annotations

from rooflight.studies.inference.engines.mapping import Bucket, EngineMapping, Reads, Run, Step


class Sampler:
    def __init__(self, work):
        self.work = work

    def choose(self, rows):
        self.work(1_000_000)
        return [7] * rows


class Engine:
    """A step is 1 ms of scheduling, 5 ms of the model, 1 ms of choosing tokens, 1 ms of the rest."""

    def __init__(self, work):
        self.work = work
        self.sampler = Sampler(work)
        self.lengths = [10, 20]

    def serve(self, steps):
        return [self.step(number) for number in range(steps)]

    def step(self, number):
        self.plan()
        self.work(5_000_000)
        tokens = self.sampler.choose(len(self.lengths))
        self.work(1_000_000)
        if number == 13:
            raise RuntimeError("out of memory")
        self.lengths = [length + 1 for length in self.lengths]
        return tokens

    def plan(self):
        self.work(1_000_000)


MAPPING = EngineMapping(
    name="acme",
    methods={
        "serve": Run(batch=lambda call: len(call.owner.lengths), label="served"),
        "step": Step(
            before=Reads(kv_lengths=lambda call: call.owner.lengths), after=Reads(tokens=lambda call: len(call.result))
        ),
        "plan": Bucket("schedule"),
        "sampler.choose": Bucket("sampler"),
    },
)


def engine_of(bench) -> Engine:
    return Engine(bench.spend)


class Scheduler:
    """Steps that begin with one method and end with another, and passes with nothing to do."""

    def __init__(self, work):
        self.work = work

    def get(self, batch):
        self.work(1_000_000)
        return batch

    def run(self):
        self.work(3_000_000)

    def process(self):
        self.work(2_000_000)


class Phases:
    """Methods with known names, called by a loop that is not the engine's."""

    def __init__(self, work):
        self.work = work

    def prefill(self):
        self.work(9_000_000)

    def decode(self):
        self.work(3_000_000)
        self.sample()

    def sample(self):
        self.work(1_000_000)


class Speculating:
    """An engine of multi-token prediction with gated LoRA: each phase takes 1 ms, and nobody named ``warm_cache``."""

    PHASES = (
        "pre_draft_and_verify", "interleave_mask_tokens", "draft_and_verify", "evaluate_posterior", "sampler_draft",
        "force_budget", "collate_kv", "delete_kv", "pre_prefill", "pre_draft", "pre_decode", "sampler", "postproc",
        "prefill", "decode",
    )  # fmt: skip

    def __init__(self, work):
        self.work = work

    def step(self, *also):
        for name in (*self.PHASES, *also):
            getattr(self, name)()

    def warm_cache(self):
        self.work(15_000_000)


for _name in Speculating.PHASES:
    setattr(Speculating, _name, lambda self: self.work(1_000_000))
