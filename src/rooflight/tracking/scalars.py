"""A step's figures as scalars, for TensorBoard and W&B."""

from __future__ import annotations

from rooflight.tracking.observer import Step, groups_of


def scalars_of(step: Step) -> dict[str, float]:
    """Name to value, SI units. Bounds and efficiencies are missing for a step whose structure is not known, and
    efficiencies for one that was being recorded, which takes longer than it would have.

    ``sol/`` is the whole step, ``sol_phase/NAME/`` a phase, ``sol_layer/CLASS/`` the modules of a class (their own
    code; what they call counts where it is). Efficiency is op bound / time.
    """
    wall_s = step.spans.wall_s
    scalars = {"sol/iteration_s": wall_s, "sol/recorded": float(step.recorded)}
    structure = step.structure
    timed = not step.recorded
    if structure is not None:
        totals, program = structure.analysis.totals, structure.analysis.program
        scalars |= {
            "sol/op_bound_s": totals.op_bound_s,
            "sol/fused_bound_s": program.fused_bound_s,
            "sol/program_bound_s": program.program_bound_s,
            "sol/matrix_flops": float(totals.matrix_flops),
            "sol/bytes_moved": float(totals.bytes_moved),
            "sol/coverage": structure.analysis.coverage.calls,
        }
        if totals.bytes_sent:
            scalars["sol/bytes_sent"] = float(totals.bytes_sent)
        if timed and wall_s:
            scalars["sol/efficiency"] = totals.op_bound_s / wall_s
            scalars["sol/matrix_flops_per_s"] = totals.matrix_flops / wall_s
    for prefix, key in (
        ("sol_phase", "phase"),
        ("sol_layer", "layer"),
    ):
        groups = groups_of(structure.timed, key) if structure is not None else {}
        for name, length in step.seconds_by[key].items():
            scalars[f"{prefix}/{name}/seconds"] = length
            group = groups.get(name)
            if group is not None and timed and length:
                scalars[f"{prefix}/{name}/efficiency"] = group.bound_s / length
    return scalars
