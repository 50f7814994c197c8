"""Small programs whose values a script may ask for. Each returns tensors by name; the values of those whose name does
not end in ``?`` are to be known without the device. Run as a script, it writes those that are known to a file.
"""

import copy
import pickle
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask


def position_ids(device):
    position = torch.arange(0, 16, dtype=torch.long, device=device)
    packed = (position.view(2, 8) - torch.tensor([[0], [8]], device=device)).clamp_(min=0)
    return {"position": position, "packed": packed, "half": packed[:, ::2].float() / 2, "rows": packed.unbind()[1]}


def causal_and_padding_masks(device):
    lengths = torch.tensor([3, 5], device=device)
    padding = torch.arange(6, device=device)[None, :] < lengths[:, None]
    causal = torch.ones(6, 6, dtype=torch.bool, device=device).tril()
    both = causal & padding[:, None, :]
    added = torch.zeros(2, 6, 6, device=device).masked_fill_(~both, float("-inf"))
    return {
        "both": both,
        "added": added,
        "any": both.any(-1),
        "cumulative": padding.int().cumsum(-1, dtype=torch.int32),
    }


def documents_block_mask(device):
    tokens = torch.ones(512, dtype=torch.long)
    tokens[[100, 260, 300, 480]] = 0
    tokens = tokens.to(device)
    document = (tokens == 0).cumsum(0)

    def mask(b, h, q, k):
        return (q >= k) & (document[q] == document[k])

    made = create_block_mask(mask, None, None, 512, 512, device=device, BLOCK_SIZE=64)
    return {
        "document": document, "counts": made.kv_num_blocks, "indices": made.kv_indices,
        "full": made.full_kv_num_blocks, "full_indices": made.full_kv_indices, "queries": made.q_indices,
    }  # fmt: skip


def large_block_masks(device):
    """Of the first 5.4 million pairs are asked in parts, of the second 17.6 million by the corners of blocks."""
    found = {}
    for length in (2321, 4200):
        tokens = torch.ones(length, dtype=torch.long)
        tokens[torch.arange(0, length, 601)] = 0
        document = (tokens.to(device) == 0).cumsum(0)

        def mask(b, h, q, k, document=document):
            return (q >= k) & (document[q] == document[k]) & (q - k < 500)

        made = create_block_mask(mask, None, None, length, length, device=device, BLOCK_SIZE=128)
        names = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
        found |= {f"{name} {length}": getattr(made, name) for name in names}
    return found


def block_mask_from_blocks(device):
    """As modded-nanogpt makes it, in its records of 2025."""
    tokens = torch.ones(1024, dtype=torch.int32)
    tokens[torch.arange(0, 1024, 150)] = 7
    sequence = tokens.to(device, dtype=torch.int32, non_blocking=True)
    documents = (sequence == 7).cumsum(0)

    def mask(b, h, q, k):
        return (q >= k) & (documents[q] == documents[k])

    def ordered(dense):
        count = dense.sum(dim=-1, dtype=torch.int32)
        indices = dense.argsort(dim=-1, descending=False, stable=True).flip(-1).to(torch.int32)
        return count[None, None].contiguous(), indices[None, None].contiguous()

    blocks = torch.arange(1024 // 128, dtype=torch.int32, device=device)
    causal_any, causal_all = blocks[:, None] >= blocks, blocks[:, None] > blocks
    low = documents.view(-1, 128)[:, 0].contiguous()
    high = documents.view(-1, 128)[:, -1].contiguous()
    document_any = (low[:, None] <= high) & (high[:, None] >= low)
    document_all = (low[:, None] == high) & (high[:, None] == low)
    partial = ordered((causal_any & document_any) & ~(causal_all & document_all))
    full = ordered(causal_all & document_all)
    window = torch.tensor(4, dtype=torch.int32, device=device)
    made = BlockMask.from_kv_blocks(
        torch.clamp_max(partial[0], torch.clamp_min(window - full[0], 1)), partial[1],
        torch.clamp_max(full[0], window - 1), full[1], BLOCK_SIZE=128, mask_mod=mask,
    )  # fmt: skip
    return {
        "counts": made.kv_num_blocks, "indices": made.kv_indices, "full": made.full_kv_num_blocks,
        "queries": made.q_num_blocks, "query_indices": made.q_indices, "documents": documents,
    }  # fmt: skip


def index_arithmetic(device):
    place = torch.arange(7, device=device)[:, None] - torch.arange(7, device=device)[None, :]
    bucket = torch.where(place > 0, 4, 0) + torch.clamp(place.abs(), max=3)  # relative positions
    grid = torch.stack(torch.meshgrid(torch.arange(3, device=device), torch.arange(4, device=device), indexing="ij"))
    flat = grid.flatten(1)
    relative = flat[:, :, None] - flat[:, None, :]
    relative[0] += 2
    relative[0] *= 7
    table = torch.randn(2 * 4, device=device)
    return {"bucket": bucket, "relative": relative.sum(0), "grid": grid, "bias?": table[bucket]}


def scaler_state(device):
    scale = torch.full((), 65536.0, device=device)
    tracker = torch.full((), 0, dtype=torch.int32, device=device)
    seen = []
    for inf in (0.0, 0.0, 1.0, 0.0):
        found = torch.full((1,), inf, device=device)
        torch._amp_update_scale_(scale, tracker, found, 2.0, 0.5, 2)
        seen += [scale.clone(), tracker.clone()]
    gradient = torch.full((4,), 8.0, device=device)
    found = torch.zeros(1, device=device)
    torch._amp_foreach_non_finite_check_and_unscale_([gradient], found, scale.reciprocal())
    return {"scale": scale, "inverse": scale.reciprocal(), "seen": torch.stack(seen), "found": found, "grad?": gradient}


def scaler(device):
    scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=2)
    layer = nn.Linear(4, 4).to(device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(5):
        scaler.scale(layer(torch.randn(3, 4, device=device)).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return {"scale": scaler._scale, "tracker": scaler._growth_tracker, "weight?": layer.weight}


def searches(device):
    edges = torch.tensor([1, 5, 9, 20], device=device)
    values = torch.tensor([[0, 5, 7], [21, 9, 1]], device=device)
    top = values.topk(2, dim=-1)
    counted, places = values.flatten().sort(stable=True)
    return {
        "bucket": torch.bucketize(values, edges, right=True), "search": torch.searchsorted(edges, values),
        "cumsum": values.cumsum(0), "top": top.values, "places": top.indices, "sorted": counted, "order": places,
        "unique": torch.unique(values), "nonzero": values.nonzero(), "bins": torch.bincount(values.flatten()),
        "chosen": values[values > 5], "where": torch.where(values > 5)[1], "argmax": values.argmax(-1),
        "repeated": torch.repeat_interleave(edges[:2], edges[:2]),
    }  # fmt: skip


def writes_through_views(device):
    base = torch.zeros(4, 6, dtype=torch.int32, device=device)
    base[1:3, ::2] = 5
    base.t()[4].add_(2)
    base.view(-1)[3:9].mul_(3)
    base.select(0, 3).copy_(torch.arange(6, device=device))
    row = base[0]
    base.narrow(1, 0, 2).fill_(-1)
    base.diagonal().neg_()
    return {"base": base, "row": row, "part": base[:, 1].clone()}


def views_of_dtype(device):
    whole = torch.arange(8, dtype=torch.int32, device=device)
    as_bytes = whole.view(torch.uint8)
    as_bytes[4] = 200
    floats = torch.tensor([1.0, -2.0], device=device).view(torch.int32)
    return {"whole": whole, "shorts": whole.view(torch.int16), "floats": floats, "bytes": as_bytes}


def overlapping(device):
    base = torch.arange(10, device=device)
    windows = base.unfold(0, 4, 2)
    base[4] = 40
    spread = torch.tensor([[1], [2]], device=device).expand(2, 5)
    strided = torch.zeros(6, device=device).as_strided((3, 2), (1, 1))
    unmade = torch.empty(6, device=device)
    unmade.as_strided((3, 2), (1, 1)).zero_()  # covers four of six
    return {"windows": windows, "spread": spread.clone(), "sum": spread.sum(1), "strided": strided, "unmade?": unmade}


def copies_both_ways(device):
    host = torch.arange(6).view(2, 3)
    there = torch.empty(2, 3, dtype=torch.long, device=device)
    there.copy_(host, non_blocking=True)
    host[0, 0] = 99
    back = there.to("cpu", copy=True)
    there += 1
    held = torch.zeros(3, 2, dtype=torch.long)
    held.copy_(there.t())
    held[0] += 1
    again = held.to(device)
    total = torch.zeros(2)
    total.add_(there.float().mean(-1).cpu())
    total.mul_(2)
    return {"there": there, "back": back, "again": again, "total": total.to(device), "held": held}


def masked_writes(device):
    values = torch.arange(12, device=device).view(3, 4)
    values[values % 3 == 0] = -1
    values[values > 9] += 5
    values.masked_scatter_(values == -1, torch.arange(50, 60, device=device))
    kept = torch.zeros(3, 4, device=device)
    kept[torch.rand(3, 4, device=device) > 0.5] = 1.0
    filled = torch.zeros(3, 4, device=device)
    filled.masked_fill_(values > 20, torch.randn((), device=device))
    return {"values": values, "kept?": kept, "filled?": filled}


def scatters(device):
    place = torch.tensor([[0, 2, 1], [1, 1, 0]], device=device)
    target = torch.zeros(2, 4, dtype=torch.long, device=device)
    target.scatter_(1, place, torch.tensor([[7, 8, 9], [1, 2, 3]], device=device))
    target.index_put_((torch.tensor([0, 1], device=device), torch.tensor([3, 3])), torch.tensor(5), accumulate=True)
    added = torch.zeros(4, dtype=torch.long, device=device).index_add_(0, place[0], torch.arange(3, device=device))
    copied = torch.zeros(4, 2, device=device).index_copy_(0, place[1, :2] * 2, torch.ones(2, 2, device=device))
    hot = nn.functional.one_hot(place, 4)
    known = torch.zeros(4, device=device)
    known.index_add_(0, place[0], torch.randn(3, device=device))
    return {
        "target": target, "added": added, "copied?": copied, "hot": hot, "known?": known,
        "gathered": hot.gather(1, place[:, :1, None].expand(2, 1, 4)), "taken": target.take(place),
    }  # fmt: skip


def counters(device):
    steps = [torch.zeros((), device=device) for _ in range(3)]
    torch._foreach_add_(steps, 1)
    torch._foreach_add_(steps[:2], torch.ones((), device=device))
    rates = torch._foreach_mul(steps, 0.5)
    torch._foreach_sub_(steps, [torch.zeros((), device=device)] * 3)
    norms = torch._foreach_norm([torch.randn(3, device=device)] * 3)
    torch._foreach_copy_(steps[2:], [torch.full((), 9.0, device=device)])
    mixed = [torch.zeros((), device=device), torch.zeros((), device=device)]
    torch._foreach_add_(mixed, [torch.randn((), device=device), torch.ones((), device=device)])
    return {"first": steps[0], "last?": steps[2], "rate": rates[1], "norm?": norms[0], "mixed?": mixed[0]}


def optimizer_steps(device):
    weight = nn.Parameter(torch.randn(3, device=device))
    optimizer = torch.optim.AdamW([weight], lr=torch.tensor(1e-3, device=device), capturable=device != "cpu")
    for _ in range(3):
        weight.square().sum().backward()
        optimizer.step()
    average = torch.optim.swa_utils.AveragedModel(nn.Linear(2, 2).to(device))
    average.update_parameters(nn.Linear(2, 2).to(device))
    return {"step": optimizer.state[weight]["step"], "averaged": average.n_averaged, "moment?": average.module.weight}


def out_variants(device):
    made = torch.zeros(5, dtype=torch.long, device=device)
    torch.arange(5, out=made)
    grown = torch.zeros(0, dtype=torch.long, device=device)
    torch.add(made, 1, out=grown)
    unknown = torch.zeros(5, device=device)
    torch.mul(torch.randn(5, device=device), 2, out=unknown)
    maximum = torch.zeros(2, dtype=torch.long, device=device), torch.zeros(2, dtype=torch.long, device=device)
    torch.max(made.expand(2, 5), 1, out=maximum)
    part = torch.zeros(4, dtype=torch.long, device=device)
    torch.add(made[:2], 1, out=part[1:3])
    return {"made": made, "grown": grown, "unknown?": unknown, "maximum": maximum[1], "part": part}


def complex_numbers(device):
    angle = torch.arange(4, device=device, dtype=torch.float32)
    turned = torch.polar(torch.ones(4, device=device), angle)
    mirrored = turned.conj()
    pairs = torch.view_as_real(turned)
    pairs[0, 1] = 3.0
    return {
        "turned": turned, "mirrored": mirrored, "imaginary": mirrored.imag, "negative": mirrored.imag.clone(),
        "real": turned.real, "product": (turned * mirrored).real, "pairs": pairs, "doubled": mirrored.imag + 1,
        "complex": torch.view_as_complex(torch.arange(6, device=device).float().view(3, 2)),
    }  # fmt: skip


def strides_and_sizes(device):
    base = torch.arange(12, device=device)
    band = base.as_strided((3, 3), (4, 1), 1)
    base[5] = 55
    smaller = torch.arange(6, device=device).resize_(2, 2)
    larger = torch.arange(3, device=device).resize_(6)
    turned = torch.arange(6, device=device).view(2, 3)
    turned.t_()
    second = torch.arange(6, device=device).view(2, 3)
    second.t_()
    second.unsqueeze_(0)
    other = torch.zeros(4, dtype=torch.long, device=device)
    other.set_(base)
    return {
        "band": band, "smaller?": smaller, "larger?": larger, "turned": turned, "second": second, "other": other,
        "rolled": base.roll(2), "flipped": band.flip(0), "cat": torch.cat([band, band.t()], 1),
    }  # fmt: skip


def new_data(device):
    first = torch.zeros(3, device=device)
    other = torch.ones(3, device=device)
    alias = first.view(3)
    first.data = other
    other[1] = 4
    alias[0] = 9
    buffers = nn.BatchNorm1d(3).to(device)
    buffers.running_mean.data = torch.full((3,), 2.0, device=device)
    return {"first": first, "alias": alias, "mean": buffers.running_mean, "tracked": buffers.num_batches_tracked}


def deep_copies(device):
    state = {"position": torch.arange(4, device=device)}
    copied = copy.deepcopy(state)
    state["position"][2] = 50
    copied["position"][3] = 7
    return {"position": state["position"], "copied": copied["position"]}


def copied_views(device):
    whole = torch.arange(6, device=device)
    copied, part, halves = copy.deepcopy([whole, whole[2:], whole.view(torch.int32)])
    copied[3], part[0], halves[0], whole[5] = 50, 20, 7, 9
    return {"whole": whole, "copied": copied, "part": part, "halves": halves}


def joined_masks(device):
    rows = torch.arange(6, device=device)
    even, late = rows % 2 == 0, rows > 2
    unknown = torch.rand(6, device=device) > 0.5
    none, every = torch.zeros(6, dtype=torch.bool, device=device), torch.ones(1, dtype=torch.bool, device=device)
    late_too = late.clone()
    late_too &= even
    return {
        "both": even & late, "either": even | late, "other": ~even ^ late, "in place": late_too, "bits": rows & 5,
        "chosen": rows[even & late], "count": (even & late).sum(), "grid": even[:, None] & late[None, :],
        "none": unknown & none, "every": unknown | every, "partly?": unknown & even, "any": (even & late).any(),
        "filled": rows.masked_fill(even & late, -1), "places": (even & late).nonzero(), "where": rows.where(even, 0),
    }  # fmt: skip


def writes_on_the_host(device):
    place = torch.tensor([[0, 2], [1, 2], [0, 2]], device=device)
    confused = torch.zeros(3, 3, dtype=torch.long)
    confused.index_put_((place[:, 0].cpu(), place[:, 1].cpu()), torch.tensor(1), accumulate=True)
    held = torch.zeros(3, 2, dtype=torch.long)
    held[(place == 2).cpu()] = place[place == 2].cpu()
    held[0] = place[1].cpu()
    return {"confused": confused.to(device), "held": held.to(device)}


def partly_unknown(device):
    base = torch.zeros(6, device=device)
    base[:3] = torch.randn(3, device=device)
    rest = base[3:]
    again = torch.zeros(6, device=device)
    again[2] = torch.rand((), device=device)
    again.zero_()
    stacked = torch.stack([torch.zeros(2, device=device), torch.randn(2, device=device)])
    drawn = torch.arange(5, device=device)
    drawn.random_(3)
    masked = torch.zeros(4, device=device)
    nn.functional.dropout(masked, 0.5, inplace=True)
    counts = torch.poisson(torch.full((3,), 4.0, device=device))
    chances = torch.bernoulli(torch.full((3,), 0.5, device=device))
    leaky = nn.functional.rrelu(torch.full((3,), -4.0, device=device), training=True)
    return {
        "rest?": rest, "again": again, "stacked?": stacked, "drawn?": drawn, "masked?": masked, "counts?": counts,
        "chances?": chances, "leaky?": leaky, "order?": torch.randperm(5, device=device),
    }  # fmt: skip


def inference(device):
    with torch.inference_mode():
        cache = torch.zeros(2, 8, dtype=torch.long, device=device)
        for position in range(3):
            cache[:, position] = position + 1
        done = torch.zeros(2, dtype=torch.bool, device=device)
        done |= cache[:, 1] == 2
        mask = torch.ones(4, 4, device=device).triu(1).bool()
        length = cache.ne(0).sum(-1)
        even = nn.functional.softmax(torch.zeros(4, device=device), -1)
    return {"cache": cache, "done": done, "mask": mask, "length": length, "even": even}


def statistics(device):
    """Of a batch norm, whose operator writes them without saying so."""
    norm = nn.BatchNorm1d(3).to(device)
    norm(torch.randn(8, 3, device=device))
    native = torch.zeros(3, device=device), torch.ones(3, device=device)
    torch.native_batch_norm(torch.randn(8, 3, device=device), None, None, *native, True, 0.1, 1e-5)
    return {"tracked": norm.num_batches_tracked, "mean?": norm.running_mean, "native?": native[0]}


def function_transforms(device):
    rows = torch.arange(6, device=device).view(3, 2)
    doubled = torch.vmap(lambda row, other: row * 2 + other.sum(), in_dims=(0, None))(rows, rows[0])
    table = torch.tensor([4, 5, 6], device=device)
    pair = torch.vmap(torch.vmap(lambda q, k: table[q] >= table[k], (None, 0)), (0, None))
    place = torch.arange(3, device=device)
    return {"doubled": doubled, "pairs": pair(place, place)}


def remembered(device):
    """The same calls again, on other values."""
    found = {}
    for turn in range(3):
        start = torch.full((4,), turn, device=device)
        moved = torch.tensor([turn, 1, 2, 3], device=device)
        start[turn:] += moved[turn:]
        found[f"start{turn}"] = start
        found[f"truth{turn}"] = torch.tensor(turn == 1, device=device).logical_not()
        found[f"chosen{turn}"] = moved[moved > 1]
        found[f"cast{turn}"] = moved.to(torch.float16) / (turn + 1)
    return found


PROGRAMS = {
    name: each
    for name, each in list(globals().items())
    if callable(each) and getattr(each, "__module__", "") == __name__
}


if __name__ == "__main__":
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    mode = _get_current_dispatch_mode_stack()[0]
    known = {}
    for program, run in PROGRAMS.items():
        torch.manual_seed(0)
        try:
            found = run("cuda")
        except Exception as error:
            known[program] = repr(error)
            continue
        known[program] = {}
        for name, tensor in found.items():
            value = mode.values.of(tensor) if isinstance(tensor, torch._subclasses.FakeTensor) else tensor
            shape = tuple(tensor.shape), tensor.stride()
            known[program][name] = shape, None if value is None else value.resolve_conj().resolve_neg().numpy()
    Path(sys.argv[1]).write_bytes(pickle.dumps(known))
