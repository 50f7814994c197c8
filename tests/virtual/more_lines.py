SETUP = """
import argparse, atexit, collections, contextlib, copy, dataclasses, functools, gc, io, itertools, json, math
import operator, os, pathlib, pickle, random, shutil, tempfile, time, types, warnings, weakref, zipfile
import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
import torch.utils.data as data

warnings.simplefilter('ignore')
CUDA = D == 'cuda'
device = torch.device(D)
torch.manual_seed(0)
x = torch.arange(15., device=D).reshape(3, 5)
n = torch.arange(15, device=D).reshape(3, 5)
h = torch.arange(15.).reshape(3, 5)
idx = torch.tensor([2, 0, 1], device=D)
lab = torch.tensor([1, 0, 4], device=D)
mask = torch.tensor([[True, False, True, False, True]], device=D).expand(3, 5).clone()
img = torch.rand(2, 3, 8, 8, device=D)
seq = torch.rand(2, 6, 8, device=D)
m = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2)).to(D)
opt = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)


def on(*ts):
    return all(t.device.type == D for t in ts)


def tmp(name):
    if not hasattr(tmp, 'dir'):
        tmp.dir, owner = tempfile.mkdtemp(), os.getpid()
        atexit.register(lambda: os.getpid() == owner and shutil.rmtree(tmp.dir, True))
    return os.path.join(tmp.dir, name)


def under(cm, f):
    with cm:
        return f()


def caught(f):
    try:
        f()
    except Exception as e:
        return e


def name(f):
    return type(caught(f)).__name__


def reload(obj, *args, **kwargs):
    b = io.BytesIO()
    torch.save(obj, b)
    b.seek(0)
    return torch.load(b, *args, **kwargs)


def fit(model, optimizer, steps=2, inp=None):
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x if inp is None else inp).square().mean()
        loss.backward()
        optimizer.step()
    return loss


def grads(model):
    return [tuple(p.grad.shape) for p in model.parameters() if p.grad is not None]


def alone(backend=None):
    backend = backend or ('nccl' if CUDA else 'gloo')
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    atexit.register(lambda: dist.is_initialized() and dist.destroy_process_group())


class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.embed = nn.Embedding(20, width, padding_idx=0)
        self.norm = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(width, 2)
        self.register_buffer('scale', torch.ones(width))
        self.register_buffer('steps', torch.tensor(0), persistent=False)
        self.extra = None

    def forward(self, ids):
        self.steps += 1
        return self.head(self.drop(self.norm(self.embed(ids).mean(1) * self.scale)))


class Rows(data.Dataset):
    def __len__(self):
        return 7

    def __getitem__(self, i):
        if i >= 7:
            raise IndexError(i)
        return torch.full((4,), float(i)), i


class Lines(data.IterableDataset):
    def __iter__(self):
        info = data.get_worker_info()
        yield from range(5) if info is None else range(info.id, 5, info.num_workers)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, by=2):
        ctx.save_for_backward(a)
        ctx.by = by
        return a * by

    @staticmethod
    def backward(ctx, g):
        a, = ctx.saved_tensors
        return g * ctx.by + 0 * a, None


class Tagged(torch.Tensor):
    seen = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(getattr(func, '__name__', str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


class Duck:
    def __init__(self, t):
        self.t = t

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        args = [a.t if isinstance(a, cls) else a for a in args]
        return cls(func(*args, **(kwargs or {})))


class Wrapped(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        take = lambda a: a.inner if isinstance(a, cls) else a
        put = lambda a: cls(a) if isinstance(a, torch.Tensor) else a
        tree = torch.utils._pytree.tree_map
        return tree(put, func(*tree(take, args), **tree(take, kwargs or {})))


class Symmetric(nn.Module):
    def forward(self, w):
        return w.triu() + w.triu(1).transpose(-1, -2)

    def right_inverse(self, w):
        return w.triu()
"""

LINES = r"""
[x[1].shape, x[-1, 2].shape, x[2].storage_offset()]
[x[[0, 2]].shape, x[[0, 2]].stride(), x[:, [4, 0, 0]].shape]
x[range(2)].shape
[x[..., None].shape, x[None, ..., 0].shape, x[:, None, 1:3].stride()]
[x[::2, 1:-1].stride(), x[::2, 1:-1].is_contiguous(), x[5:].shape, x[0:0].numel()]
[x[np.int64(1), np.int32(2)].ndim, x[np.array([0, 2, 2])].shape]
y = x[torch.tensor([0, 2])]; [y.shape, on(y)]
x[torch.arange(3), lab].shape
[x[idx[0]].shape, x[:, lab[1]].stride()]
[x[:idx[0]].shape[1:], x[idx.min():, 1:].shape[1]]
y = x[x > 7]; [y.ndim, y.dtype, on(y)]
x[h[:, 0] > 4].shape
[x[[True, False, True]].shape, x[np.array([False, False, True])].shape]
[x[True].shape, x[False].shape, x[()].shape]
x[1] = 0; x[:, 0] += 1; x[0, 0] = x[1, 1]; x[..., -1] = h[:, 0]; x[:2] = torch.zeros(5); [x.shape, on(x)]
x[x > 3] = 0; x[mask] *= 2; x[~mask] = -x[~mask]; [x.shape, x.dtype]
y = name(lambda: operator.setitem(x, 0, np.ones(5))); x[0] = torch.from_numpy(np.ones(5)); [y, x.dtype, on(x)]
x[idx, lab] = torch.tensor(9., device=D); x[[0, 1], 2:4] = x[1:, :2]; x[torch.tensor([1])] = 5; x.shape
x[1, 7]
[name(lambda: x[0, 0, 0]), name(lambda: x['a']), name(lambda: x[1.5]), name(lambda: x[::-1])]
[x.gather(1, lab[:, None]).squeeze(1).shape, x.take(n[0]).shape, x.index_select(0, idx).stride()]
torch.zeros(3, 5, device=D).scatter_(1, lab.unsqueeze(1), 1.0).stride()
[torch.where(x > 2, x, 0.).dtype, torch.where(n > 2, 1, 0).dtype, len(torch.where(x > 2)), torch.where(mask[0], x, n).dtype]
[x.masked_fill(mask, float('-inf')).dtype, x.masked_select(mask).ndim, x.masked_scatter(mask, x).shape]
['cat', 'dog', 'owl', 'ant', 'bee'][x[0].argmax().item()].isalpha()
[x[idx[:, None], lab[None, :2]].shape, x[torch.zeros(0, dtype=torch.long, device=D)].shape]
rows = torch.zeros(4, 3, device=D); rows[idx.tolist()[0] % 4, :] = torch.tensor([1, 2, 3]); rows.dtype
[torch.tensor([[1, 2], [3, 4]], device=D).dtype, torch.tensor([1, 2.], device=D).dtype, torch.tensor([True, False], device=D).dtype, torch.tensor(1j, device=D).dtype]
[torch.tensor(np.float32(3), device=D).dtype, torch.tensor(np.arange(3, dtype=np.int16), device=D).dtype, torch.as_tensor(np.ones(2), device=D).dtype]
y = torch.tensor([x.sum(), x.mean(), x.max()], device=D); [y.shape, y.dtype]
torch.tensor([r.mean().item() for r in x] + [float(x.std())], device=D).shape
y = torch.from_numpy(np.eye(3, dtype=np.float32)[::2].copy()).to(D); [y.shape, y.dtype, on(y)]
[torch.tensor(range(4), device=D).shape, torch.arange(0, 1, 0.1, device=D).shape, torch.arange(5, 0, -2, device=D).dtype, torch.linspace(0, 1, 7, device=D).dtype]
[torch.zeros_like(x, dtype=torch.long).dtype, x.new_zeros(2, 3).shape, n.new_tensor([1.5]).dtype, x.new_full((2,), 3).dtype, x.t().new_empty(x.t().shape).stride(), torch.empty_like(x.t()).stride()]
torch.tensor([[1], [2, 3]], device=D)
[torch.asarray(x) is x, torch.as_tensor(x, device=D) is x, torch.tensor(x) is x, x.clone() is x, x.contiguous() is x]
torch.tensor([x[0], x[1]], device=D)
[torch.stack([r * 2 for r in x]).shape, torch.cat(list(x)).shape, torch.cat([x, n], dim=1).dtype, torch.hstack((x, x)).shape, torch.vstack([x[0], x[1]]).shape]
[torch.zeros(x.shape[0], *x.shape[1:], device=x.device, dtype=x.dtype).shape, torch.ones(x.size(), device=D).shape, torch.full((2, 2), 7, device=D).dtype, torch.full([2], True, device=D).dtype]
[x.new(2, 3).type() == x.type(), torch.Tensor(2, 3).to(D).shape, torch.LongTensor([1, 2]).to(D).dtype, torch.FloatTensor(np.zeros((2, 2), dtype=np.float32)).to(D).shape]
torch.zeros(2, device='gpu')
[x.to(D) is x, x.to(device) is x, x.to(torch.float32) is x, (x.to('cpu') is x) == (not CUDA), x.to(D, copy=True) is x]
[x.to(torch.float16).dtype, x.to(n).dtype, on(h.to(x)), x.to(D, torch.half, non_blocking=True).dtype, x.to(device='cpu', dtype=torch.int8).device.type]
y = img.to(memory_format=torch.channels_last); [y.stride(), y.is_contiguous(), y.is_contiguous(memory_format=torch.channels_last), y.cpu().stride()]
[x.type(torch.long).dtype, x.type_as(n).dtype, x.double().dtype, x.bool().dtype, x.byte().dtype, n.float().dtype, x.bfloat16().dtype, x.cfloat().dtype]
x.to(dtype='float32')
[m.to(D, non_blocking=True) is m, m.to(torch.bfloat16)[0].weight.dtype, m.double()(x.double()).dtype, name(lambda: m.to(torch.int32))]
batch = {'a': h, 'b': [h, 'text', 3], 'c': {'d': h}}; moved = torch.utils._pytree.tree_map(lambda v: v.to(D) if torch.is_tensor(v) else v, batch); [on(moved['a'], moved['b'][0], moved['c']['d']), moved['b'][1:]]
with_grad = h.clone().requires_grad_(); with_grad.to(D).sum().backward(); [with_grad.grad.device.type, with_grad.grad.shape, with_grad.to(D).is_leaf == (not CUDA)]
w = torch.zeros(2, device=D, requires_grad=True).to(D); v = nn.Parameter(torch.zeros(2)).to(torch.float64); [w.is_leaf, v.is_leaf, type(v).__name__]
with_meta = nn.Linear(3, 2, device='meta').to_empty(device=D); [on(*with_meta.parameters()), name(lambda: nn.Linear(3, 2, device='meta').to(D))]
[(x.cuda() if CUDA else x).shape, on(*(m.cuda() if CUDA else m).parameters()), m.cpu()[0].weight.device.type]
[n.to(torch.uint8).sum().dtype, (n / 2).dtype, (n // 2).dtype, (n + 0.5).dtype, (n.int() + n.short()).dtype, (x.half() * torch.tensor(2.0, device=D)).dtype, (x.half() + x).dtype]
y = reload(x); [on(y), y.shape, y.stride(), y.dtype]
torch.save(x, tmp('x.pt')); [os.path.exists(tmp('x.pt')), os.path.getsize(tmp('x.pt')) > 60, zipfile.is_zipfile(tmp('x.pt')), torch.load(tmp('x.pt'), map_location='cpu').device.type]
[on(reload(h, map_location=D)), on(reload(x, map_location=device)), reload(x, map_location=lambda storage, loc: storage).device.type, on(reload(h, map_location=lambda s, l: s.cuda() if CUDA else s))]
reload({'x': x}, map_location={'cuda:0': 'cpu', D: 'cpu'})['x'].device.type
sd = reload(m.state_dict(), weights_only=True); [type(sd).__name__, list(sd), on(*sd.values())]
torch.save({'args': argparse.Namespace(lr=1), 'x': x}, tmp('a.pt')); [name(lambda: torch.load(tmp('a.pt'), weights_only=True)), torch.load(tmp('a.pt'), weights_only=False)['args'].lr]
torch.serialization.add_safe_globals([argparse.Namespace]); reload({'cfg': argparse.Namespace(d=3), 'x': x})['cfg'].d
torch.save({'epoch': 3, 'model': m.state_dict()}, tmp('c.tmp')); os.replace(tmp('c.tmp'), tmp('c.pt')); [os.path.exists(tmp('c.tmp')), torch.load(tmp('c.pt'))['epoch'], m.load_state_dict(torch.load(tmp('c.pt'), map_location=D)['model'])]
torch.save(m.state_dict(), tmp('m.pt')); [v.shape for v in torch.load(tmp('m.pt'), map_location='cpu', mmap=True).values()]
y = reload([x, x[1], x.t()]); [y[0].data_ptr() + 20 == y[1].data_ptr(), y[2].stride(), y[1].storage_offset()]
torch.save(x, tmp('old.pt'), _use_new_zipfile_serialization=False); [on(torch.load(tmp('old.pt'))), zipfile.is_zipfile(tmp('old.pt'))]
p = pathlib.Path(tmp('deep/er')); p.mkdir(parents=True); torch.save(m, p / 'whole.pth'); net = torch.load(p / 'whole.pth', weights_only=False); [type(net).__name__, net(x).shape, sorted(q.suffix for q in p.iterdir())]
fit(m, opt); best = {k: v.cpu().clone() for k, v in m.state_dict().items()}; torch.save({'model': best, 'opt': opt.state_dict(), 'rng': torch.get_rng_state()}, tmp('b.pt')); c = torch.load(tmp('b.pt')); opt.load_state_dict(c['opt']); torch.set_rng_state(c['rng']); [v.device.type for v in c['model'].values()] + [on(s['momentum_buffer']) for s in opt.state.values()]
with_open = open(tmp('f.pt'), 'wb'); torch.save((x, 'tail'), with_open); with_open.close(); torch.load(open(tmp('f.pt'), 'rb'), map_location=D)[1]
big = torch.zeros(1000, 100, device=D); torch.save(big[0], tmp('v.pt')); torch.save(big[0].clone(), tmp('w.pt')); [os.path.getsize(tmp('v.pt')) > 400000, os.path.getsize(tmp('w.pt')) < 4000]
torch.load(tmp('never_written.pt'), map_location=D)
import torch.distributed.checkpoint as dcp; s = {'m': m.state_dict(), 'step': 4}; dcp.save(s, checkpoint_id=tmp('dcp')); s['step'] = 0; dcp.load(s, checkpoint_id=tmp('dcp')); [s['step'], on(*s['m'].values()), os.path.exists(tmp('dcp/.metadata'))]
r = m.load_state_dict({'0.weight': torch.zeros(4, 5), 'old.bias': torch.zeros(1)}, strict=False); [r.missing_keys, r.unexpected_keys]
m.load_state_dict({'0.weight': torch.zeros(4, 5)})
m.load_state_dict({**m.state_dict(), '2.weight': torch.zeros(9, 9)}, strict=False)
sd = {'module.' + k: v for k, v in m.state_dict().items()}; torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(sd, 'module.'); str(m.load_state_dict(sd))
net = Net().to(D); [sorted(net.state_dict()), sorted(k for k, _ in net.named_buffers()), on(net.steps, net.scale), net(n).shape, type(net.steps.item()).__name__]
host = nn.Linear(5, 4); m[0].load_state_dict(host.state_dict()); a = on(m[0].weight); m[0].load_state_dict(host.state_dict(), assign=True); [a, m[0].weight.device.type]
y = pickle.loads(pickle.dumps({'x': x, 'p': m[0].weight, 'n': None})); [on(y['x'], y['p']), type(y['p']).__name__, y['p'].requires_grad]
net = pickle.loads(pickle.dumps(m, protocol=pickle.HIGHEST_PROTOCOL)); [net(x).shape, on(*net.parameters()), net[0].weight is m[0].weight]
y = copy.deepcopy([x, x]); z = copy.copy(x); [y[0] is y[1], y[0] is x, z.data_ptr() == x.data_ptr(), y[0].data_ptr() == x.data_ptr()]
copy.deepcopy(m(x))
fit(m, opt); o = copy.deepcopy(opt); net = copy.deepcopy(m); [len(o.state), [g['lr'] for g in o.param_groups], net[0].weight.grad is m[0].weight.grad, on(*[s['momentum_buffer'] for s in o.state.values()])]
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn; ema = AveragedModel(m, multi_avg_fn=get_ema_multi_avg_fn(0.99), device=D); ema.update_parameters(m); fit(m, opt); ema.update_parameters(m); [ema(x).shape, ema.n_averaged.shape, sorted(ema.state_dict())[0]]
from torch.optim.swa_utils import AveragedModel, SWALR, update_bn; net = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)).to(D); swa = AveragedModel(net); swa.update_parameters(net); update_bn([h, h], swa, device=D); s = SWALR(torch.optim.SGD(net.parameters(), 0.1), swa_lr=0.05, anneal_epochs=2); s.step(); [swa.module[1].running_mean.shape, s.get_last_lr()]
s = torch.jit.script(m); b = io.BytesIO(); torch.jit.save(s, b); b.seek(0); s = torch.jit.load(b, map_location=D); [s(x).shape, on(*s.parameters()), 'def forward' in s.code]
t = torch.jit.trace(m.eval(), x); t.save(tmp('t.pt')); [torch.jit.load(tmp('t.pt'))(x[:2]).shape, torch.jit.load(tmp('t.pt'), map_location='cpu')(h).device.type, type(t).__name__]
cu = torch.jit.CompilationUnit('def relu_sum(a, k: int):\n    b = a.relu() if k > 0 else a.neg()\n    return b.sum(0)\n'); [cu.relu_sum(x, 1).shape, on(cu.relu_sum(x, 0))]
f = torch.jit.freeze(torch.jit.script(copy.deepcopy(m).eval())); [f(x).shape, len(list(f.parameters()))]
[v.shape for v in torch.jit.trace(lambda a, b: (a @ b.t(), a.topk(2, dim=1)[1]), (x, x))(x, x)]
ep = torch.export.export(m, (x,)); [ep.module()(x).shape, sorted(ep.state_dict), any('linear' in str(k.target) for k in ep.graph.nodes), on(*ep.state_dict.values())]
ep = torch.export.export(m, (x,), dynamic_shapes=({0: torch.export.Dim('batch', min=2, max=64)},)); [ep.module()(torch.ones(k, 5, device=D)).shape for k in (2, 9)]
torch.export.save(torch.export.export(m.eval(), (x,)), tmp('e.pt2')); torch.export.load(tmp('e.pt2')).module()(x).shape
from torch.fx import symbolic_trace; g = symbolic_trace(m); [k.op for k in g.graph.nodes] + [g(x).shape, on(*g.parameters())]
[torch.func.vmap(lambda r: r.sum())(x).shape, torch.func.vmap(torch.dot)(x, x).shape, torch.func.vmap(lambda a, b: a * b, in_dims=(0, None), out_dims=1)(x, x[0]).shape]
p = dict(m.named_parameters()); g = torch.func.grad(lambda p, r: torch.func.functional_call(m, p, (r,)).sum()); [v.shape for v in torch.func.vmap(g, in_dims=(None, 0))(p, x).values()]
[v.shape for v in torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))] + [torch.func.vjp(torch.sin, x)[1](x)[0].shape]
[torch.func.jacrev(lambda v: v ** 2)(x[0]).shape, torch.func.jacfwd(m)(x[0]).shape, torch.func.hessian(lambda v: v.pow(3).sum())(x[0]).shape, torch.autograd.functional.jacobian(lambda v: v.exp(), x[0]).shape]
ps, bs = torch.func.stack_module_state([copy.deepcopy(m) for _ in range(3)]); base = copy.deepcopy(m).to('meta'); [ps['0.weight'].shape, torch.func.vmap(lambda p, b, v: torch.func.functional_call(base, (p, b), (v,)), in_dims=(0, 0, None))(ps, bs, x).shape]
[torch.func.vmap(lambda r: r + torch.randn_like(r), randomness='different')(x).shape, name(lambda: torch.func.vmap(lambda r: r.sum().item())(x))]
nt = torch.nested.nested_tensor([x[0], x[1, :2]], layout=torch.jagged, device=D); [nt.is_nested, nt.size(0), nt.values().shape, nt.offsets().shape, on(nt), [t.ndim for t in nt.unbind()]]
nt = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], device=D); [torch.nested.to_padded_tensor(nt, 0.0).shape, nt.dim(), [t.shape for t in nt.unbind()], on(nt)]
s = torch.sparse_coo_tensor(torch.tensor([[0, 1], [2, 0]]), [3., 4.], (2, 3), device=D); [s.is_sparse, s.to_dense().shape, torch.sparse.mm(s, x).shape, s.layout, s.sparse_dim(), s._nnz(), on(s)]
s = x.to_sparse(); c = x.to_sparse_csr(); [s.layout, s.coalesce().indices().shape[0], s.values().ndim, c.layout, c.crow_indices().shape, (c @ x.t()).shape]
e = nn.Embedding(10, 3, sparse=True).to(D); o = torch.optim.SparseAdam(e.parameters()); e(idx).sum().backward(); o.step(); [e.weight.grad.is_sparse, e.weight.grad.shape]
T = torch.cuda.FloatTensor if CUDA else torch.FloatTensor; [isinstance(x, T), isinstance(n, T), T([1, 2, 3]).shape, T(2, 3).fill_(1).dtype, on(T(1))]
torch.set_default_tensor_type('torch.cuda.FloatTensor' if CUDA else 'torch.FloatTensor'); [on(torch.zeros(2), torch.rand(3), torch.tensor([1.]), nn.Linear(2, 2).weight), torch.from_numpy(np.zeros(2)).device.type]
[x.type().split('.')[-1], n.type().replace('.cuda', ''), x.half().type() == ('torch.cuda.HalfTensor' if CUDA else 'torch.HalfTensor'), x.type('torch.DoubleTensor').device.type, torch.typename(x).split('.')[-1]]
L = torch.cuda.LongTensor if CUDA else torch.LongTensor; [x.type(L).dtype, torch.autograd.Variable(L([1, 0])).shape, L([[1], [2]]).is_cuda == CUDA]
torch.set_default_device(D); y = [torch.zeros(2), torch.arange(3), torch.tensor([1.5]), torch.randn(2), nn.Linear(2, 2).weight]; torch.set_default_device('cpu'); [on(*y), torch.zeros(1).device.type]
under(torch.device(D), lambda: [on(torch.ones(2), nn.LSTM(2, 2).weight_hh_l0, torch.eye(2)), torch.ones(2, device='cpu').device.type, torch.get_default_device().type == D])
torch.set_default_dtype(torch.float64); [torch.zeros(2, device=D).dtype, torch.tensor([1.], device=D).dtype, (n / 2).dtype, nn.Linear(2, 2, device=D).weight.dtype, torch.get_default_dtype()]
e0, e1 = (torch.cuda.Event(enable_timing=True) for _ in range(2)) if CUDA else (None, None); CUDA and (e0.record(), fit(m, opt), e1.record(), torch.cuda.synchronize()); isinstance(e0.elapsed_time(e1), float) if CUDA else True
s = torch.cuda.Stream() if CUDA else None; y = under(torch.cuda.stream(s), lambda: x * 2); CUDA and (torch.cuda.current_stream().wait_stream(s), y.record_stream(torch.cuda.current_stream())); [y.shape, (s is None) == (not CUDA)]
m(x); g = torch.cuda.CUDAGraph() if CUDA else None; y = under(torch.cuda.graph(g), lambda: m(x)) if CUDA else m(x); CUDA and g.replay(); [y.shape, x.copy_(h) is x]
f = torch.cuda.make_graphed_callables(m, (torch.zeros_like(x),)) if CUDA else m; y = f(x.clone()); y.sum().backward(); [y.shape, grads(m)]
[torch.cuda.current_device() if CUDA else 0, torch.cuda.device_count() >= 1 if CUDA else True, isinstance(torch.cuda.get_device_name(0), str) if CUDA else True, len(torch.cuda.get_device_capability()) if CUDA else 2, under(torch.cuda.device(0) if CUDA else contextlib.nullcontext(), lambda: x.shape)]
ev = torch.cuda.Event() if CUDA else None; st = torch.cuda.Stream(priority=-1) if CUDA else None; CUDA and (ev.record(st), st.wait_event(ev), st.synchronize(), ev.synchronize()); [(ev.query() and st.query()) if CUDA else True, (st == torch.cuda.current_stream()) if CUDA else False]
g = torch.Generator(device=D).manual_seed(7); [g.initial_seed(), g.device.type == D, torch.randn(2, 3, generator=g, device=D).shape, torch.randint(5, (4,), generator=g, device=D).dtype, g.get_state().dtype, g.get_state().device.type]
s = torch.cuda.get_rng_state() if CUDA else torch.get_rng_state(); CUDA and (torch.cuda.set_rng_state(s), torch.cuda.set_rng_state_all(torch.cuda.get_rng_state_all())); [s.dtype, s.device.type, s.ndim]
torch.manual_seed(3); torch.cuda.manual_seed_all(3); np.random.seed(3); random.seed(3); [torch.rand(2).tolist(), float(np.random.rand()), random.random(), torch.initial_seed()]
a = torch.get_rng_state(); under(torch.random.fork_rng(devices=[0] if CUDA else []), lambda: [torch.manual_seed(9), torch.rand(3), torch.rand(3, device=D)]); torch.equal(a, torch.get_rng_state())
torch.manual_seed(5); w = nn.Linear(3, 2).weight.detach().clone(); lin = nn.Linear(3, 2).to(D); [w.tolist(), on(lin.weight), nn.init.orthogonal_(torch.empty(2, 2)).shape]
[nn.init.xavier_uniform_(m[0].weight).shape, nn.init.kaiming_normal_(m[2].weight, nonlinearity='relu') is m[2].weight, nn.init.trunc_normal_(x, std=0.02).shape, nn.init.orthogonal_(torch.empty(4, 3, device=D)).shape, nn.init.constant_(m[0].bias, 0).requires_grad, type(m.apply(lambda k: isinstance(k, nn.Linear) and nn.init.zeros_(k.bias))).__name__]
[x.normal_().shape, x.uniform_(-1, 1).dtype, x.bernoulli_(0.5).dtype, torch.bernoulli(x.abs().clamp(0, 1)).shape, torch.multinomial(x.abs() + 1, 2).shape, torch.randperm(6, device=D).dtype, torch.rand_like(x).stride(), torch.poisson(x.abs()).shape, F.dropout(x, 0.5).shape]
p = h.pin_memory() if CUDA else h; [p.is_pinned() == CUDA, torch.empty(3, pin_memory=CUDA).is_pinned() == CUDA, h.is_pinned(), p.sum().item(), on(p.to(D, non_blocking=True))]
b = next(iter(data.DataLoader(Rows(), batch_size=3, pin_memory=CUDA))); [b[0].is_pinned() == CUDA, b[0].shape, b[1].tolist(), on(b[0].to(D, non_blocking=True))]
[[b[1].tolist(), tuple(b[0].shape)] for b in data.DataLoader(Rows(), batch_size=3, num_workers=2, persistent_workers=True, prefetch_factor=1)]
[b.tolist() for b in data.DataLoader(list(range(6)), batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(4))]
ds = data.TensorDataset(x, lab); [[a.shape, b.shape, on(a, b)] for a, b in data.DataLoader(ds, batch_size=2, drop_last=True)] + [ds[0][1].ndim, len(ds)]
pad = lambda items: (nn.utils.rnn.pad_sequence([t[: i + 1] for t, i in items], batch_first=True), torch.tensor([i for _, i in items])); [a.to(D).shape for a, _ in data.DataLoader(Rows(), batch_size=4, collate_fn=pad, num_workers=1)]
sorted(b.item() for b in data.DataLoader(Lines(), num_workers=2, batch_size=None, collate_fn=torch.tensor)) + [len(list(data.DataLoader(Lines(), batch_size=2)))]
s = data.WeightedRandomSampler([1., 2., 3., 1., 1., 1., 1.], 4, generator=torch.Generator().manual_seed(2)); [list(s), [b[1].shape for b in data.DataLoader(Rows(), sampler=s, batch_size=2)]]
torch.compile(m, backend='eager')(x).shape
f = torch.compile(m, backend='aot_eager', fullgraph=True); f(x).sum().backward(); grads(m)
f = torch.compile(lambda t: torch.nn.functional.gelu(t) * 2 + t.mean(-1, keepdim=True)); y = f(x); [y.shape, y.stride(), on(y)]
under(torch.no_grad(), lambda: [torch.compile(m, mode='reduce-overhead')(x).shape for _ in range(2)])
torch.compile(m, mode='max-autotune-no-cudagraphs')(x).dtype
f = torch.compile(lambda t: t.cumsum(0) + t.shape[0], dynamic=True, backend='aot_eager'); [f(torch.ones(k, 2, device=D)).shape for k in (3, 5, 8)]
net = torch.compile(m, backend='eager'); [sorted(net.state_dict())[0], isinstance(net, nn.Module), type(net).__name__, net._orig_mod is m, net.load_state_dict({'_orig_mod.' + k: v for k, v in m.state_dict().items()}) is not None]
seen = []; f = torch.compile(lambda t: (t + 1).relu(), backend=lambda g, a: (seen.append([len(a), [k.op for k in g.graph.nodes]]), g.forward)[1]); f(x); f(x * 2); seen
m.compile(backend='aot_eager', dynamic=False); fit(m, opt); [grads(m), torch.compiler.is_compiling(), list(m.state_dict())[0]]
f = torch.compile(lambda t: t * 2 if t.sum() > -1e30 else t - 1, backend='eager'); [f(x).shape, name(lambda: torch.compile(lambda t: t * t.max().item() if t.sum() > 0 else t, backend='eager', fullgraph=True)(x)) != 'NoneType']
step = torch.compile(lambda: (opt.zero_grad(), m(x).sum().backward(), opt.step())[2], backend='eager'); step(); step(); [len(opt.state), on(*[s['momentum_buffer'] for s in opt.state.values()])]
y = under(torch.autocast(D, dtype=torch.bfloat16), lambda: [m(x).dtype, (x @ x.t()).dtype, (x + x).dtype, F.mse_loss(m(x), m(x)).dtype, torch.is_autocast_enabled(D), torch.get_autocast_dtype(D)]); y + [torch.is_autocast_enabled(D), m(x).dtype]
under(torch.autocast(device_type=device.type, dtype=torch.float16), lambda: [torch.bmm(seq, seq.mT).dtype, F.conv2d(img, torch.ones(1, 3, 3, 3, device=D)).dtype, under(torch.autocast(D, enabled=False), lambda: m(x).dtype), F.scaled_dot_product_attention(seq, seq, seq).dtype])
s = torch.amp.GradScaler(D, init_scale=1024.); l = under(torch.autocast(D, dtype=torch.bfloat16), lambda: m(x).float().mean()); s.scale(l).backward(); s.unscale_(opt); nn.utils.clip_grad_norm_(m.parameters(), 1.); s.step(opt); s.update(); [s.is_enabled(), type(s.get_scale()).__name__, sorted(s.state_dict()), m[0].weight.grad.dtype]
s = torch.cuda.amp.GradScaler(enabled=False); s.scale(m(x).sum()).backward(); s.step(opt); s.update(); [s.get_scale(), s.state_dict(), len(opt.state)]
alone('gloo'); net = nn.parallel.DistributedDataParallel(m); fit(net, opt); [list(net.state_dict())[0], grads(m), net.module is m, dist.get_world_size(), dist.get_backend()]
alone(); net = nn.parallel.DistributedDataParallel(m, device_ids=[0] if CUDA else None, find_unused_parameters=True); under(net.no_sync(), lambda: net(x).sum().backward()); net(x).sum().backward(); [grads(m), type(net).__name__, dist.get_backend() == ('nccl' if CUDA else 'gloo')]
os.environ.update(MASTER_ADDR='localhost', MASTER_PORT='0', RANK='0', WORLD_SIZE='1', LOCAL_RANK='0'); dist.init_process_group('nccl' if CUDA else 'gloo'); y = [torch.empty_like(x)]; dist.all_reduce(x); dist.all_gather(y, x); dist.broadcast(x, src=0); dist.barrier(); r = [dist.is_initialized(), dist.get_rank(), on(y[0])]; dist.destroy_process_group(); r + [dist.is_initialized()]
alone(); o = [None]; dist.all_gather_object(o, {'acc': 0.5, 'ids': [1, 2]}); b = ['cfg']; dist.broadcast_object_list(b, src=0); w = dist.all_reduce(x, op=dist.ReduceOp.MAX, async_op=True); [o, b, w.wait() in (True, None), x.shape]
alone(); from torch.distributed.fsdp import fully_shard; [fully_shard(k) for k in (m[0], m[2])]; fully_shard(m); o = torch.optim.AdamW(m.parameters()); fit(m, o); [type(m[0].weight).__name__, m[0].weight.shape, m[0].weight.to_local().shape, type(m).__name__, m[0].weight.grad.full_tensor().shape]
alone(); from torch.distributed.fsdp import fully_shard, MixedPrecisionPolicy; fully_shard(m, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)); y = m(x); y.float().sum().backward(); [y.dtype, m[0].weight.dtype, m[0].weight.grad.dtype]
alone(); from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor; from torch.distributed.device_mesh import init_device_mesh; mesh = init_device_mesh(D, (1,), mesh_dim_names=('dp',)); d = distribute_tensor(x, mesh, [Shard(0)]); [d.shape, d.placements, (d @ d.t()).full_tensor().shape, d.redistribute(mesh, [Replicate()]).to_local().shape, mesh['dp'].size(), on(d.to_local())]
alone(); from torch.distributed.device_mesh import init_device_mesh; from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module; t = parallelize_module(m, init_device_mesh(D, (1,)), {'0': ColwiseParallel(), '2': RowwiseParallel()}); [t(x).shape, type(t[0].weight).__name__, [str(p) for p in t[2].weight.placements]]
alone(); from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict, StateDictOptions; fit(m, opt); a, b = get_state_dict(m, opt, options=StateDictOptions(full_state_dict=True, cpu_offload=True)); set_state_dict(m, opt, model_state_dict=a, optim_state_dict=b); [list(a)[:2], a['0.weight'].device.type, list(b)]
net = nn.DataParallel(m); [net(x).shape, list(net.state_dict())[0], net.module is m]
from torch.utils.checkpoint import checkpoint, checkpoint_sequential; a = checkpoint(m, x, use_reentrant=False); checkpoint_sequential(m, 2, x.clone().requires_grad_(), use_reentrant=True).sum().backward(); a.sum().backward(); [a.shape, grads(m)]
seen = []; m[0].register_forward_hook(lambda k, a, o: seen.append([type(k).__name__, a[0].shape, o.shape, on(o)])); m(x); seen
seen = []; a = m[1].register_full_backward_hook(lambda k, gi, go: seen.append([gi[0].shape, go[0].shape])); m(x).sum().backward(); a.remove(); m(x).sum().backward(); seen
m.register_forward_pre_hook(lambda k, a, kw: ((a[0] * 2,), kw), with_kwargs=True); m[2].register_forward_hook(lambda k, a, o: o[:, :1]); m(x).shape
seen = []; y = m(x); y.retain_grad(); y.register_hook(lambda g: seen.append(g.shape) or g * 0); m[0].weight.register_hook(lambda g: seen.append(g.shape)); y.mean().backward(); seen + [y.grad.shape]
seen = []; [p.register_post_accumulate_grad_hook(lambda p: (seen.append(tuple(p.shape)), setattr(p, 'grad', None))[1]) for p in m.parameters()]; m(x).sum().backward(); [sorted(seen), [p.grad for p in m.parameters()]]
packed = []; y = under(torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t.shape) or t.cpu(), lambda t: t.to(D)), lambda: m(x).exp().sum()); y.backward(); [len(packed) > 2, grads(m)]
import torch.nn.utils.parametrize as P; lin = nn.Linear(3, 3).to(D); P.register_parametrization(lin, 'weight', Symmetric()); under(P.cached(), lambda: lin(x[:, :3]).sum().backward()); a = [P.is_parametrized(lin), sorted(lin.state_dict()), on(lin.weight), type(lin).__name__]; P.remove_parametrizations(lin, 'weight'); a + [sorted(lin.state_dict())]
from torch.nn.utils.parametrizations import weight_norm, spectral_norm, orthogonal; a, b, c = (f(nn.Linear(4, 4).to(D)) for f in (weight_norm, spectral_norm, orthogonal)); [sorted(k.state_dict()) for k in (a, b, c)] + [k(x[:, :4]).shape for k in (a, b, c)]
a = nn.utils.weight_norm(nn.Conv1d(4, 2, 3)).to(D); b = nn.utils.spectral_norm(nn.Conv2d(3, 4, 3)).to(D); r = [a.weight_g.shape, sorted(k for k, _ in b.named_buffers()), b(img).shape, a(seq[:, :4]).shape]; nn.utils.remove_weight_norm(a); r + [sorted(a.state_dict())]
import torch.nn.utils.prune as prune; prune.l1_unstructured(m[0], 'weight', amount=0.5); prune.random_structured(m[2], 'weight', amount=1, dim=0); a = [sorted(k for k, _ in m.named_buffers()), m[0].weight_mask.shape, on(m[0].weight_mask), prune.is_pruned(m), m(x).shape]; prune.remove(m[0], 'weight'); a + [sorted(m[0].state_dict())]
t = x.as_subclass(Tagged); y = (t + 1).sum(0); [type(y).__name__, isinstance(y, torch.Tensor), 'sum' in Tagged.seen, on(y), type(t[0]).__name__, type(y.as_subclass(torch.Tensor)).__name__]
d = torch.add(Duck(x), 1); [type(d).__name__, d.t.shape, type(torch.cat(Duck([x, x]))).__name__, torch.overrides.has_torch_function((Duck(x),))]
w = Wrapped(x); y = (w * 2 + x).sum(dim=0); [type(y).__name__, y.inner.shape, w.device.type == D, type(m(w)).__name__, w.t().shape]
from torch.overrides import TorchFunctionMode; M = type('M', (TorchFunctionMode,), {'calls': [], '__torch_function__': lambda self, f, t, a=(), k=None: (self.calls.append(f.__name__), f(*a, **(k or {})))[1]}); under(M(), lambda: torch.relu(x).sum()); M.calls
from torch.utils._python_dispatch import TorchDispatchMode; M = type('M', (TorchDispatchMode,), {'ops': [], '__torch_dispatch__': lambda self, f, t, a=(), k=None: (self.ops.append(str(f)), f(*a, **(k or {})))[1]}); under(M(), lambda: torch.relu(x).sum(1)); M.ops
x.requires_grad_(); y = Double.apply(x, 3); y.sum().backward(); [y.grad_fn.name(), x.grad.shape, y.requires_grad, Double.apply(n).requires_grad, torch.autograd.Function.__name__]
f = torch.library.custom_op('lines_b::scaled', lambda a, k: a * k, mutates_args=(), schema='(Tensor a, float k) -> Tensor'); f.register_fake(lambda a, k: torch.empty_like(a)); f.register_autograd(lambda ctx, g: (g * 2, None)); y = torch.ops.lines_b.scaled(x.requires_grad_(), 2.0); y.sum().backward(); [y.shape, x.grad.shape, torch.compile(f, backend='aot_eager', fullgraph=True)(x, 3.0).shape]
lib = torch.library.Library('lines_c', 'DEF'); lib.define('twice(Tensor a) -> Tensor'); lib.impl('twice', lambda a: a * 2, 'CUDA' if CUDA else 'CPU'); [torch.ops.lines_c.twice(x).shape, name(lambda: torch.ops.lines_c.thrice(x))]
[name(lambda: np.asarray(x)) == ('TypeError' if CUDA else 'NoneType'), name(lambda: x.numpy()) == ('TypeError' if CUDA else 'NoneType'), name(lambda: x.requires_grad_().cpu().numpy())]
a = np.asarray(x.cpu()); b = x.detach().cpu().numpy(); [a.dtype.name, b.shape, b.strides, type(np.mean(x.cpu().numpy())).__name__, n.cpu().numpy().dtype.name, mask.cpu().numpy().dtype.name, x.half().cpu().numpy().dtype.name, x.numpy(force=True).shape]
[np.mean([r.sum().item() for r in x]).dtype.name, np.stack([r.cpu().numpy() for r in x]).shape, np.concatenate([x.cpu(), h]).shape, np.array([r.sum().cpu() for r in x]).shape, np.vstack([t.tolist() for t in x]).shape, len(np.argsort(-x[0].cpu().numpy()))]
[(np.float64(2) * x).dtype, (x * np.float32(2)).dtype, (x + np.int64(1)).dtype, on(x / np.float64(3)), (n * np.int64(2)).dtype, (x ** np.float64(2)).shape, x.new_tensor(np.ones(3)).dtype, torch.tensor(np.bool_(True), device=D).dtype]
x.bfloat16().cpu().numpy()
y = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x)); [y.shape, y.stride(), on(y), y.data_ptr() == x.data_ptr(), torch.from_dlpack(h.numpy()).to(D).shape, int(x.__dlpack_device__()[0]) == (2 if CUDA else 1)]
d = torch.distributions.Normal(x, torch.ones_like(x)); s = d.rsample((2,)); [s.shape, d.log_prob(s).shape, d.entropy().shape, on(d.mean, s), torch.distributions.kl_divergence(d, torch.distributions.Normal(torch.zeros_like(x), 1.)).shape, d.batch_shape]
d = torch.distributions.Categorical(logits=x); a = d.sample(); [a.shape, a.dtype, d.log_prob(a).shape, d.probs.shape, d.entropy().shape, type(a[0].item()).__name__]
[f.sample((4,)).shape for f in (torch.distributions.Bernoulli(probs=torch.full((3,), 0.3, device=D)), torch.distributions.Beta(torch.ones(2, device=D), torch.ones(2, device=D)), torch.distributions.Gamma(torch.ones(2, device=D), 1.), torch.distributions.Dirichlet(torch.ones(3, device=D)), torch.distributions.Uniform(torch.zeros(2, device=D), 1.), torch.distributions.Poisson(torch.ones(2, device=D)))]
d = torch.distributions.MultivariateNormal(torch.zeros(3, device=D), torch.eye(3, device=D)); i = torch.distributions.Independent(torch.distributions.Normal(x, 1.), 1); t = torch.distributions.TransformedDistribution(i, [torch.distributions.transforms.TanhTransform(cache_size=1)]); [d.rsample((2,)).shape, d.log_prob(torch.zeros(3, device=D)).shape, i.event_shape, t.rsample().shape, t.log_prob(t.rsample()).shape]
lengths = torch.tensor([6, 4]); p = nn.utils.rnn.pack_padded_sequence(seq, lengths, batch_first=True, enforce_sorted=False); o, (hn, cn) = nn.LSTM(8, 3, batch_first=True, bidirectional=True).to(D)(p); y, l = nn.utils.rnn.pad_packed_sequence(o, batch_first=True); [type(o).__name__, p.data.shape, p.batch_sizes.tolist(), y.shape, l.tolist(), hn.shape, on(y, p.sorted_indices)]
p = nn.utils.rnn.pack_sequence([seq[0], seq[1, :2]]); q = p.to('cpu'); [p.is_cuda == CUDA, q.data.device.type, p.batch_sizes.device.type, [t.shape for t in nn.utils.rnn.unpack_sequence(p)], nn.utils.rnn.pad_sequence([x[0], x[1, :2]], padding_value=-1, padding_side='left').shape]
[F.cross_entropy(x, lab).shape, F.cross_entropy(x, lab, reduction='none', label_smoothing=0.1, ignore_index=0).shape, F.cross_entropy(x, x.softmax(1)).ndim, F.nll_loss(x.log_softmax(1), lab, weight=torch.ones(5, device=D)).dtype, nn.NLLLoss(reduction='sum')(x.log_softmax(-1), lab).shape]
[f(x, x.t().reshape(3, 5)).shape for f in (nn.L1Loss(), nn.MSELoss(reduction='none'), nn.SmoothL1Loss(), nn.HuberLoss(), nn.KLDivLoss(reduction='batchmean', log_target=True), nn.PoissonNLLLoss(), nn.SoftMarginLoss(), nn.MultiLabelSoftMarginLoss())]
[nn.BCEWithLogitsLoss(pos_weight=torch.ones(5, device=D))(x, mask.float()).shape, F.binary_cross_entropy(x.sigmoid(), mask.float(), reduction='none').shape, name(lambda: F.binary_cross_entropy_with_logits(x, lab.float())), name(lambda: F.binary_cross_entropy_with_logits(x, mask))]
a, b = x[0:2], x[1:3]; s = torch.tensor([1, -1], device=D); [nn.CosineEmbeddingLoss()(a, b, s).shape, nn.TripletMarginLoss(margin=1.)(a, b, a).shape, nn.MarginRankingLoss()(a[:, 0], b[:, 0], s).shape, nn.HingeEmbeddingLoss()(a[:, 0], s).shape, nn.MultiMarginLoss()(x, lab).shape, nn.GaussianNLLLoss()(a, b, torch.ones_like(a)).shape, nn.MultiLabelMarginLoss()(x, torch.full_like(n, -1)).shape]
lp = torch.randn(10, 2, 6, device=D).log_softmax(-1).requires_grad_(); l = nn.CTCLoss(zero_infinity=True)(lp, torch.randint(1, 6, (2, 4), device=D), torch.tensor([10, 9]), torch.tensor([4, 3])); l.backward(); [l.shape, lp.grad.shape]
[nn.CrossEntropyLoss()(torch.randn(2, 5, 4, 4, device=D), torch.randint(5, (2, 4, 4), device=D)).shape, nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 10]).to(D)(seq[:, 0], idx[:2]).output.shape, isinstance(caught(lambda: F.cross_entropy(x, lab.float())), RuntimeError), name(lambda: F.cross_entropy(x, lab[:2]))]
[type(fit(m, f(m.parameters())).item()).__name__ for f in (torch.optim.Adam, torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.RMSprop, torch.optim.Rprop, torch.optim.NAdam, torch.optim.RAdam, torch.optim.ASGD, torch.optim.Adamax, torch.optim.Adafactor)]
o = torch.optim.AdamW([{'params': [p for p in m.parameters() if p.ndim > 1], 'weight_decay': 0.1}, {'params': [p for p in m.parameters() if p.ndim < 2], 'lr': 1e-4}], lr=1e-3, betas=(0.9, 0.95), fused=CUDA); fit(m, o); [[len(g['params']), g['lr'], g['weight_decay']] for g in o.param_groups] + [sorted(o.state[m[0].weight]), o.state[m[0].weight]['exp_avg'].shape, o.state[m[0].weight]['step'].shape]
o = torch.optim.Adam(m.parameters(), amsgrad=True, foreach=True); fit(m, o); s = o.state_dict(); [sorted(s['state'][0]), sorted(s['state']), s['param_groups'][0]['params'], on(s['state'][0]['max_exp_avg_sq']), s['state'][0]['step'].device.type]
o = torch.optim.LBFGS(m.parameters(), line_search_fn='strong_wolfe', max_iter=2, history_size=3); [name(lambda: o.step()), sorted(o.param_groups[0])[:3], name(lambda: torch.optim.LBFGS([{'params': m[0].parameters()}, {'params': m[2].parameters()}]))]
o = torch.optim.LBFGS(m.parameters(), lr=0.1, max_iter=3); f = lambda: (o.zero_grad(), l := m(x).square().mean(), l.backward())[1]; [o.step(f).shape, len(o.state) == 1]
fit(m, opt); host = copy.deepcopy(m).cpu(); o = torch.optim.SGD(host.parameters(), lr=0.5, momentum=0.9); o.load_state_dict(opt.state_dict()); [o.param_groups[0]['lr'], [s['momentum_buffer'].device.type for s in o.state.values()], name(lambda: torch.optim.SGD(m[0].parameters(), lr=1.).load_state_dict(opt.state_dict()))]
s = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=4); r = []; [(fit(m, opt, 1), s.step(), r.append(round(s.get_last_lr()[0], 6))) for _ in range(3)]; r + [s.state_dict()['last_epoch'], opt.param_groups[0]['lr'] == s.get_last_lr()[0]]
s = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.5, steps_per_epoch=2, epochs=2); t = torch.optim.lr_scheduler.LambdaLR(torch.optim.Adam(m.parameters(), 1.), lambda e: 0.5 ** e); [(opt.step(), s.step()) for _ in range(4)]; t.step(); [name(lambda: s.step()), t.get_last_lr(), [round(v, 8) for v in s.get_last_lr()]]
s = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0, factor=0.5); [s.step(v) for v in (1.0, 2.0, 3.0)]; s.step(m(x).mean().item()); [isinstance(opt.param_groups[0]['lr'], float), type(s.state_dict()['best']).__name__]
o = torch.optim.SGD(m.parameters(), lr=torch.tensor(0.1, device=D), differentiable=False, nesterov=True, momentum=0.5); o.add_param_group({'params': [nn.Parameter(torch.zeros(2, device=D))]}); [on(o.param_groups[0]['lr']), len(o.param_groups), name(lambda: o.add_param_group({'params': m.parameters()})), name(lambda: torch.optim.SGD([], lr=0.1)), name(lambda: torch.optim.SGD([m(x)], lr=0.1))]
o = torch.optim.Muon([m[0].weight, m[2].weight], lr=0.02); fit(m, o); [sorted(o.state[m[0].weight]), o.state[m[2].weight]['momentum_buffer'].shape]
opt.zero_grad(); a = m[0].weight.grad; fit(m, opt); opt.zero_grad(set_to_none=False); b = m[0].weight.grad.shape; m.zero_grad(); [a, b, m[0].weight.grad]
m(x).sum().backward(); t = nn.utils.clip_grad_norm_(m.parameters(), 1.0, error_if_nonfinite=False); nn.utils.clip_grad_value_(m.parameters(), 0.5); [t.shape, on(t), type(t.item()).__name__, nn.utils.get_total_norm([p.grad for p in m.parameters()], norm_type=float('inf')).ndim, nn.utils.clip_grad_norm_([], 1.0).tolist()]
m(x).sum().backward(); [torch.stack([p.grad.norm() for p in m.parameters()]).norm().shape, torch.norm(torch.cat([p.grad.view(-1) for p in m.parameters()])).dtype, type(sum(p.grad.data.norm(2).item() ** 2 for p in m.parameters()) ** 0.5).__name__, len(torch._foreach_norm([p.grad for p in m.parameters()]))]
r = nn.GRU(8, 4, num_layers=2, dropout=0.1, batch_first=True).to(D); o, hn = r(seq, torch.zeros(2, 2, 4, device=D)); r.flatten_parameters(); [o.shape, hn.shape, [k for k, _ in r.named_parameters()][:4], nn.LSTMCell(8, 3).to(D)(seq[:, 0])[1].shape, nn.RNN(8, 3, nonlinearity='relu').to(D)(seq)[0].shape]
nn.LSTM(8, 4).to(D)(torch.zeros(2, 6, 7, device=D))
e = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False).to(D); k = torch.zeros(2, 6, dtype=torch.bool, device=D); k[:, 4:] = True; [e(seq, src_key_padding_mask=k).shape, under(torch.no_grad(), lambda: e.eval()(seq, mask=nn.Transformer.generate_square_subsequent_mask(6, device=D), is_causal=True).shape)]
a = nn.MultiheadAttention(8, 2, batch_first=True).to(D); o, w = a(seq, seq, seq, average_attn_weights=False, attn_mask=torch.ones(6, 6, device=D).triu(1).bool()); [o.shape, w.shape, a(seq, seq, seq, need_weights=False)[1]]
q = torch.rand(2, 4, 6, 8, device=D, requires_grad=True); k = torch.rand(2, 2, 6, 8, device=D); o = F.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True); o.sum().backward(); [o.shape, q.grad.shape, F.scaled_dot_product_attention(q, q, q, attn_mask=torch.ones(6, 6, device=D).tril().bool(), dropout_p=0.1, scale=0.5).shape, name(lambda: F.scaled_dot_product_attention(q, k, k))]
from torch.nn.attention.flex_attention import flex_attention, create_block_mask; q = torch.rand(1, 2, 128, 16, device=D); b = create_block_mask(lambda bb, hh, i, j: i >= j, None, None, 128, 128, device=D); [flex_attention(q, q, q, block_mask=b).shape, flex_attention(q, q, q, score_mod=lambda s, bb, hh, i, j: s + (j - i)).shape, b.shape]
[torch.fft.fft(x).dtype, torch.fft.rfft(x, norm='ortho').shape, torch.fft.irfft(torch.fft.rfft(x), n=5).shape, torch.fft.fftshift(torch.fft.fft2(img), dim=(-2, -1)).shape, torch.fft.fftfreq(6, device=D).shape, torch.fft.fft(x).abs().dtype, torch.view_as_real(torch.fft.fft(x)).shape]
w = torch.rand(2, 400, device=D); s = torch.stft(w, 64, hop_length=16, window=torch.hann_window(64, device=D), return_complex=True); [s.shape, s.dtype, torch.istft(s, 64, hop_length=16, window=torch.hann_window(64, device=D), length=400).shape, name(lambda: torch.stft(w, 64))]
a = torch.eye(3, device=D) + 0.1; [torch.linalg.inv(a).shape, torch.linalg.det(a).shape, [t.shape for t in torch.linalg.svd(x, full_matrices=False)], [t.dtype for t in torch.linalg.eigh(a)], torch.linalg.eigvals(a).dtype, torch.linalg.solve(a, x).shape, [t.shape for t in torch.linalg.qr(x)], torch.linalg.cholesky(a).shape]
[torch.linalg.norm(x).shape, torch.linalg.vector_norm(x, dim=1, keepdim=True).shape, torch.linalg.matrix_rank(x).dtype, torch.linalg.pinv(x).shape, torch.linalg.lstsq(x.t(), x.t()).solution.shape, torch.linalg.slogdet(torch.eye(2, device=D)).logabsdet.shape, torch.matrix_exp(torch.eye(2, device=D)).shape, torch.trace(x[:, :3]).ndim, name(lambda: torch.linalg.inv(x))]
[torch.cdist(x, x).shape, torch.bmm(seq, seq.transpose(1, 2)).shape, torch.baddbmm(torch.zeros(2, 6, 6, device=D), seq, seq.mT).shape, torch.addmm(x[:, :3], x, x.t(), beta=0.5).shape, (x @ x[0]).shape, torch.chain_matmul(x, x.t(), x).shape, torch.block_diag(x, x).shape, x.cov().shape, torch.corrcoef(x).shape]
[x.nonzero().shape[1], len(x.nonzero(as_tuple=True)), torch.argwhere(x > 3).dtype, mask.any().dtype, mask.all(dim=1).shape, (x > 2).sum().dtype, torch.count_nonzero(x, dim=0).shape, (mask & (x > 1)).dtype, type((mask | ~mask).all().item()).__name__, torch.isin(n, lab).shape, x.isnan().any().ndim]
u, inv, c = torch.unique(n, return_inverse=True, return_counts=True); [u.ndim, inv.shape, c.dtype, u.dtype, torch.unique_consecutive(lab).ndim, torch.unique(x, dim=0).shape[1], type(len(n.unique())).__name__, type(set(lab.tolist())).__name__]
v, i = x.topk(2); s = torch.sort(x, dim=0, descending=True); [v.shape, i.dtype, s.values.stride(), s.indices.shape, x.argsort(dim=1, stable=True).shape, x.kthvalue(2, dim=1).values.shape, x.median(dim=1)[1].dtype, x.median().ndim, x.mode(1).values.shape, torch.msort(x).shape, type(s).__name__]
[torch.bincount(lab, minlength=10).ndim, torch.histc(x, bins=4, min=0, max=10).shape, torch.bucketize(x, torch.tensor([1., 5.], device=D)).dtype, torch.searchsorted(x[0], x).shape, [t.shape for t in torch.aminmax(x, dim=1)], x.quantile(torch.tensor([0.1, 0.9], device=D), dim=1).shape, torch.cummax(x, 0).indices.dtype, torch.logsumexp(x, 1).shape, x.diff().shape]
[x.max(dim=1).indices.dtype, x.max(1, keepdim=True)[0].shape, torch.max(x, x + 1).shape, x.amax((0, 1)).shape, x.argmax().shape, x.sum((0, 1)).ndim, x.mean(-1, keepdim=True).shape, [t.shape for t in torch.std_mean(x, 1)], n.sum(dtype=torch.float64).dtype, name(lambda: n.mean()), x.prod(1).shape, mask.sum(1).dtype, x.norm(p=1, dim=0).shape]
[F.one_hot(lab, num_classes=5).shape, F.one_hot(lab, 5).dtype, F.pad(x, (1, 1), value=0.).shape, F.pad(img, (1, 2, 3, 0), mode='reflect').shape, F.normalize(x, dim=-1).stride(), F.interpolate(img, scale_factor=2, mode='bilinear', align_corners=False).shape, F.grid_sample(img, torch.zeros(2, 4, 4, 2, device=D), align_corners=True).shape, F.unfold(img, 3).shape, F.cosine_similarity(x[:, None], x[None], dim=-1).shape, F.pixel_shuffle(img[:, :1].expand(2, 4, 8, 8), 2).shape]
b = nn.BatchNorm2d(3).to(D); b(img); b.eval(); [b.running_mean.shape, b.num_batches_tracked.dtype, on(b.num_batches_tracked), type(b.num_batches_tracked.item()).__name__, b(img).stride(), nn.GroupNorm(1, 3).to(D)(img).shape, name(lambda: nn.BatchNorm1d(5).to(D)(x[:1])), nn.InstanceNorm2d(3, affine=True).to(D)(img).shape, nn.RMSNorm(5).to(D)(x).dtype, on(nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(b))[0].weight)]
c = nn.Conv2d(3, 6, 3, stride=2, padding=1, groups=3, device=D); [c(img).shape, c.to(memory_format=torch.channels_last)(img.to(memory_format=torch.channels_last)).stride(), nn.ConvTranspose2d(3, 2, 2, stride=2).to(D)(img).shape, nn.MaxPool2d(2, return_indices=True)(img)[1].dtype, nn.AdaptiveAvgPool2d(1)(img).flatten(1).shape, nn.Conv2d(3, 2, 3, padding='same', padding_mode='reflect').to(D)(img).shape, nn.LazyLinear(7).to(D)(x).shape, nn.Flatten()(img).shape, nn.Unflatten(1, (1, 5))(x).shape]
[nn.Embedding.from_pretrained(torch.rand(5, 3), freeze=True).to(D)(lab).shape, nn.EmbeddingBag(10, 3, mode='mean').to(D)(n[:2, :4] % 10).shape, nn.EmbeddingBag(20, 3).to(D)(n.view(-1), torch.tensor([0, 5, 9], device=D)).shape, nn.Bilinear(5, 5, 2).to(D)(x, x).shape, nn.PReLU().to(D)(x).shape, nn.ParameterList([nn.Parameter(x), nn.Parameter(x)]).to(D)[1].shape, list(nn.ParameterDict({'a': nn.Parameter(x)}).to(D)), name(lambda: nn.Embedding(5, 3).to(D)(x))]
[torch.testing.assert_close(x, x.clone()), name(lambda: torch.testing.assert_close(x, x.double())), name(lambda: torch.testing.assert_close(x, x[:2])), torch.testing.assert_close({'a': [x]}, {'a': [x]}), type(torch.allclose(x, x + 1)).__name__, type(torch.equal(x, n.float())).__name__, torch.equal(x, x[:2]), torch.testing.make_tensor(2, 3, device=D, dtype=torch.float16).dtype]
a = torch.ones(3, device=D, requires_grad=True); b = a.exp(); b.add_(1); [name(lambda: b.sum().backward()), name(lambda: a.add_(1)), name(lambda: under(torch.autograd.detect_anomaly(check_nan=False), lambda: (a.exp().mul_(2) * a).sum().backward()))]
y = m(x).sum(); y.backward(); [name(lambda: y.backward()), name(lambda: m(x).backward()), name(lambda: x.sum().backward()), torch.autograd.grad(m(x).sum(), m.parameters())[0].shape, torch.autograd.grad(m(x).sum(), [m[0].weight, torch.ones(1, device=D, requires_grad=True)], allow_unused=True)[1], m(x).backward(torch.ones(3, 2, device=D))]
[under(torch.no_grad(), lambda: m(x).requires_grad), under(torch.inference_mode(), lambda: m(x).is_inference()), under(torch.set_grad_enabled(False), torch.is_grad_enabled), torch.no_grad()(lambda: m(x).grad_fn)(), name(lambda: under(torch.inference_mode(), lambda: m(x)).requires_grad_().mul_(2).backward()), m(x).detach().is_leaf, m(x).grad_fn is None]
w = torch.ones(5, device=D, requires_grad=True); g, = torch.autograd.grad((w ** 3).sum(), w, create_graph=True); gg, = torch.autograd.grad(g.sum(), w, retain_graph=True); p = (torch.autograd.grad(m(x.requires_grad_()).sum(), x, create_graph=True)[0].norm(2, dim=1) - 1).pow(2).mean(); p.backward(); [g.requires_grad, gg.shape, p.shape, m[0].weight.grad.shape, m[2].bias.grad]
a = torch.cuda.memory_allocated(); y = torch.empty(1 << 20, device=D); b = torch.cuda.memory_allocated(); y = None; gc.collect(); torch.cuda.empty_cache(); [(b - a >= 4 << 20) == CUDA, torch.cuda.memory_allocated() <= b, torch.cuda.max_memory_allocated() >= b]
[isinstance(torch.cuda.memory_reserved(), int), isinstance(torch.cuda.memory_summary(abbreviated=True) if CUDA else '', str), (lambda f, t: 0 < f <= t)(*(torch.cuda.mem_get_info() if CUDA else (1, 1))), torch.cuda.reset_peak_memory_stats() if CUDA else None, torch.cuda.get_device_properties(0).total_memory > 1 << 30 if CUDA else True, 'allocated_bytes.all.peak' in torch.cuda.memory_stats() if CUDA else True, f'{torch.cuda.max_memory_allocated() / 2 ** 20:.1f} MiB'.endswith('MiB')]
e = caught(lambda: torch.empty(1 << 46, device=D)); [isinstance(e, RuntimeError), isinstance(e, torch.cuda.OutOfMemoryError) == CUDA, 'memory' in str(e).lower(), x.sum().shape]
l = m(x).mean(); [len(f'{l.item():.4f}') > 5, len(f'{l:.3e}') > 5, len('%.2f' % l) > 3, len('{:>8d}'.format(n[0, 1].item())), len(str(x)) > 0, len(repr(l)) > 6, ("device='cuda:0'" in repr(x)) == CUDA, 'grad_fn' in repr(l), f'{x.shape}', f'{tuple(x.size())} {x.dtype}', repr(m)]
losses = [m(x).mean().detach() for _ in range(3)]; [type(sum(losses) / len(losses)).__name__, torch.stack(losses).mean().shape, type(max(losses)).__name__, len(sorted(losses)), type(min(losses).item()).__name__, type(json.dumps({'loss': float(losses[0]), 'n': len(losses)})).__name__, type(round(losses[0].item(), 3)).__name__, type(math.isnan(losses[0])).__name__, isinstance(np.mean([float(v) for v in losses]), float), name(lambda: json.dumps({'loss': losses[0]}))]
Batch = dataclasses.make_dataclass('Batch', ['ids', 'labels', ('meta', dict, dataclasses.field(default_factory=dict))]); b = Batch(n, lab); c = dataclasses.replace(b, labels=lab.float()); [c.labels.dtype, on(c.ids), c.ids is n, sorted(dataclasses.asdict(b)), 'Batch(ids=tensor' in repr(b), [f.name for f in dataclasses.fields(b) if torch.is_tensor(getattr(b, f.name))], name(lambda: b == Batch(n.clone(), lab))]
P = collections.namedtuple('P', 'obs act'); buf = collections.deque(maxlen=3); [buf.append(P(x[i % 3], lab[i % 3])) for i in range(5)]; b = P(*map(torch.stack, zip(*random.sample(list(buf), 2)))); [len(buf), b.obs.shape, b.act.shape, b._fields, P(*[t.to(D) for t in P(h, h)]).obs.shape]
ps = list(m.parameters()); [len(set(ps)), len({p: i for i, p in enumerate(ps)}), hash(x) == hash(x), x in {x}, x.clone() in {x}, x in [x], {id(p) for p in ps} == {id(p) for p in m.parameters()}, len({x, x.view(3, 5)}), name(lambda: m[2].weight in ps), functools.lru_cache()(lambda t: t.shape)(x)]
[type(x == 1).__name__, (x == x).dtype, x is None, x == None, x != 'a', type(3.0 in x).__name__, name(lambda: 'a' in x), (x == n).shape, x.eq(1).dtype, name(lambda: x == x[:2])]
[name(lambda: bool(x)), name(lambda: 1 if x > 3 else 0), name(lambda: x and 1), type(bool(x[0, 0])).__name__, name(lambda: not x[:0]), type(not x.sum()).__name__, name(lambda: float(x)), name(lambda: x[0].item())]
a, b, c = x; (d, e), *rest = zip(x, lab); [a.shape, e.shape, len(rest), [i for i, r in enumerate(x)], [r.shape for r in reversed(x)][:1], len(x), len(list(iter(x[0]))), type(next(iter(lab))).__name__, name(lambda: len(x.sum())), name(lambda: list(x.sum())), sum(x).shape, [v.ndim for v in torch.unbind(lab)], name(lambda: dict(x)), (lambda p, q, r: q.shape)(*x)]
B, T, C = seq.shape; h_, w_ = img.shape[-2:]; [seq.view(B * T, C).shape, torch.zeros(*x.shape, device=D).shape, max(t.shape for t in (x, x[:2])), max(len(t) for t in (x, x.t())), min([x.size(0), x.size(-1)]), x.shape == (3, 5), x.shape == torch.Size([3, 5]), math.prod(img.shape), x.shape + (1,), type(x.shape[:1]).__name__, x.shape.numel(), bool(x[:0].shape), 5 in x.shape, h_ * w_, [*x.shape], x.numel() / len(x), (1, *x.shape)]
[isinstance(operator.index(n[0, 1]), int), type(float(x.sum())).__name__, type(int(x[0, 0])).__name__, type(complex(x[0, 0])).__name__, [type(v).__name__ for v in lab.tolist()], type(x[0, 0].tolist()).__name__, name(lambda: operator.index(x[0, 0])), type(n[0, 0].item() + 1).__name__, type(math.floor(x[0, 0])).__name__, name(lambda: range(x[0, 0])), torch.zeros(2 + 0 * int(n[0, 0]), device=D).shape]
[x.is_cuda == CUDA, x.is_cpu == (not CUDA), x.is_meta, x.is_sparse, x.is_floating_point(), n.is_floating_point(), x.is_complex(), isinstance(x, torch.Tensor), type(x).__name__, type(m[0].weight).__name__, isinstance(m[0].weight, nn.Parameter), (x.get_device() >= 0) == CUDA, x.device == device or x.device == torch.device(D, 0), next(m.parameters()).is_cuda == CUDA, x.device == h.to(D).device, x.dtype is torch.float32, x.itemsize, x.nbytes]
x.t().view(-1)
[x.t().reshape(-1).shape, x.t().is_contiguous(), x.t().contiguous().stride(), x.T.stride(), x.mT.shape, img.permute(0, 2, 3, 1).stride(), img.permute(0, 2, 3, 1).flatten(1, 2).shape, img.movedim(1, -1).is_contiguous(), x.view(5, 3).stride(), x.view(1, -1).shape, name(lambda: x.view(4, 4)), name(lambda: x.view(-1, -1)), name(lambda: x.view(2, -1)), x.unsqueeze(0).squeeze().shape, x.swapaxes(0, 1).stride(), x.ravel().shape, x.view_as(n).shape]
[x.view(torch.int32).dtype, x.view(torch.int16).shape, name(lambda: x.view(torch.float64)), x.untyped_storage().nbytes(), x[1].storage_offset(), x[1].data_ptr() - x.data_ptr(), x.data_ptr() == x.view(-1).data_ptr(), x[1]._base is x, x.storage().size(), x.t().untyped_storage().data_ptr() == x.untyped_storage().data_ptr(), x.untyped_storage().device.type == D, x.element_size() * x.nelement(), x.is_set_to(x.view(3, 5)), x.storage().dtype, x.clone().untyped_storage().data_ptr() == x.untyped_storage().data_ptr()]
e = x[:1].expand(4, 5); [e.stride(), x[:, :1].expand(-1, 6).shape, name(lambda: e.add_(1)), name(lambda: e.view(20)), e.reshape(20).shape, e.clone().stride(), torch.broadcast_tensors(x, x[0])[1].stride(), torch.broadcast_shapes((3, 1), (5,)), name(lambda: x.expand(2, 5)), x.as_strided((2, 2), (1, 2), 1).storage_offset(), name(lambda: x.as_strided((100,), (1,))), (x + x[:, :1]).shape, name(lambda: x + x.t())]
s = x.untyped_storage(); k = s.size(); s.resize_(0); a = s.size(); s.resize_(k); y = torch.empty(0, device=D); y.set_(x.untyped_storage(), 5, (2, 5), (5, 1)); z = x.new(); z.resize_(2, 2); z.resize_as_(x); v = torch.zeros(1, device=D); v.data = x; [k, a, y.shape, y.data_ptr() - x.data_ptr(), z.shape, v.shape, name(lambda: x.set_(n)), v.data_ptr() == x.data_ptr()]
v0 = x._version; x.add_(1).mul_(2); x.copy_(h); x.detach().zero_(); y = x.clone(memory_format=torch.preserve_format); [x._version - v0, y._version, x.fill_(0) is x, x.clamp_(0, 1).shape, name(lambda: n.add_(0.5)), name(lambda: x.copy_(torch.zeros(2))), x.t_().shape, torch.add(x, 1, out=torch.empty_like(x)).shape, name(lambda: torch.add(x, 1, out=n.t())), x.squeeze_().stride(), x.share_memory_().shape]
[name(lambda: m(torch.zeros(3, 4, device=D))), name(lambda: x @ x), name(lambda: torch.cat([x, x[0]])), name(lambda: torch.stack([x, x.t()])), name(lambda: x.reshape(4)), name(lambda: x.sum(5)), name(lambda: x.squeeze(7)), name(lambda: x.foo), name(lambda: torch.zeros(-1, device=D)), name(lambda: torch.matmul(x, n.t())), name(lambda: x.transpose(0, 3)), name(lambda: F.conv2d(x, x)), name(lambda: img.chunk(0)), name(lambda: x.split([1, 1]))]
[str(caught(lambda: m(torch.zeros(3, 4, device=D)))), 'must match' in str(caught(lambda: x + x.t())), 'invalid for input of size 15' in str(caught(lambda: x.view(4, 4))), 'stride' in str(caught(lambda: x.t().view(-1))), str(caught(lambda: x[1, 7])), 'has no attribute' in str(caught(lambda: x.foo)), str(caught(lambda: x.sum(5)))]
from transformers import BertConfig, BertForSequenceClassification; b = BertForSequenceClassification(BertConfig(vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, max_position_embeddings=16)).to(D); o = b(input_ids=n, attention_mask=torch.ones_like(n), labels=lab % 2); o.loss.backward(); [o.logits.shape, o.loss.ndim, list(o.keys()), b.device.type == D, b.dtype, b.num_parameters() > 100]
from transformers import GPT2Config, GPT2LMHeadModel; g = GPT2LMHeadModel(GPT2Config(vocab_size=30, n_embd=8, n_layer=1, n_head=2, n_positions=32)).to(D).eval(); [g.generate(n, max_new_tokens=3, min_new_tokens=3, do_sample=False, pad_token_id=0).shape, g.generate(n[:1, :4], max_length=7, min_length=7, do_sample=True, top_k=5, temperature=0.7, pad_token_id=0, num_return_sequences=2).shape, g(n, labels=n).loss.shape, len(g(n, output_hidden_states=True, use_cache=True).hidden_states)]
from transformers import LlamaConfig, LlamaForCausalLM; c = LlamaConfig(vocab_size=30, hidden_size=8, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1); l = LlamaForCausalLM(c).to(D, torch.bfloat16); l.save_pretrained(tmp('llama')); k = LlamaForCausalLM.from_pretrained(tmp('llama'), dtype=torch.float16).to(D); l.gradient_checkpointing_enable(); l.train()(n, labels=n).loss.backward(); [k(n).logits.dtype, sorted(os.listdir(tmp('llama')))[:1], k.get_input_embeddings().weight.shape, k.get_memory_footprint() > 0, l.model.layers[0].self_attn.k_proj.weight.grad.dtype]
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments; l = LlamaForCausalLM(LlamaConfig(vocab_size=30, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)); d = [{'input_ids': torch.arange(6), 'labels': torch.arange(6)}] * 4; t = Trainer(l, TrainingArguments(output_dir=tmp('out'), max_steps=2, per_device_train_batch_size=2, report_to=[], save_strategy='no', disable_tqdm=True, logging_strategy='no'), train_dataset=d); o = t.train(); [o.global_step, type(o.training_loss).__name__, t.model.device.type == D, t.args.device.type == D, on(*t.model.parameters())]
from accelerate import Accelerator; a = Accelerator(gradient_accumulation_steps=2); dl = data.DataLoader(Rows(), batch_size=2); net, o, dl = a.prepare(nn.Linear(4, 2), torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1), dl); r = [on(b[0], b[1]) for b in dl]; a.backward(net(next(iter(dl))[0]).sum()); [a.device.type == D, r, a.unwrap_model(net).weight.grad.shape, a.num_processes, a.is_main_process, a.gather(x).shape, a.clip_grad_norm_(net.parameters(), 1.0).ndim]
from accelerate import init_empty_weights, load_checkpoint_and_dispatch; from accelerate.utils import find_executable_batch_size, set_seed, send_to_device; set_seed(1); torch.save(nn.Linear(4, 2).state_dict(), tmp('lin.bin')); net = under(init_empty_weights(), lambda: nn.Linear(4, 2)); a = net.weight.is_meta; net = load_checkpoint_and_dispatch(net, tmp('lin.bin'), device_map={'': 0 if CUDA else 'cpu'}); [a, on(net.weight), net(x[:, :4]).shape, find_executable_batch_size(lambda bs: bs if bs < 8 else (_ for _ in ()).throw(RuntimeError('CUDA out of memory.')), starting_batch_size=8)(), on(send_to_device({'k': [h]}, D)['k'][0])]
"""
