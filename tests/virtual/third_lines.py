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


import sys
import typing


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, t):
        t32 = t.float()
        return (t32 * torch.rsqrt(t32.pow(2).mean(-1, keepdim=True) + self.eps)).type_as(t) * self.weight


class CausalSelfAttention(nn.Module):
    def __init__(self, dim=8, heads=2, block=16):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.heads, self.dim = heads, dim
        self.register_buffer('bias', torch.tril(torch.ones(block, block)).view(1, 1, block, block))

    def forward(self, t):
        B, T, C = t.size()
        q, k, v = self.c_attn(t).split(self.dim, dim=2)
        q, k, v = (a.view(B, T, self.heads, C // self.heads).transpose(1, 2) for a in (q, k, v))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float('-inf'))
        y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    def __init__(self, dim=8, heads=2):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(dim), RMSNorm(dim)
        self.attn = CausalSelfAttention(dim, heads)
        self.mlp = nn.ModuleDict(dict(c_fc=nn.Linear(dim, 4 * dim), act=nn.GELU(approximate='tanh'), c_proj=nn.Linear(4 * dim, dim)))

    def forward(self, t):
        t = t + self.attn(self.ln_1(t))
        return t + self.mlp.c_proj(self.mlp.act(self.mlp.c_fc(self.ln_2(t))))


class GPT(nn.Module):
    def __init__(self, vocab=20, dim=8, layers=2, block=16):
        super().__init__()
        self.transformer = nn.ModuleDict(dict(wte=nn.Embedding(vocab, dim), wpe=nn.Embedding(block, dim), h=nn.ModuleList([Block(dim) for _ in range(layers)]), ln_f=nn.LayerNorm(dim)))
        self.lm_head = nn.Linear(dim, vocab, bias=False)
        self.transformer.wte.weight = self.lm_head.weight
        self.block = block
        self.apply(self._init_weights)

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)
            if getattr(module, 'bias', None) is not None:
                nn.init.zeros_(module.bias)

    def forward(self, ids, targets=None):
        pos = torch.arange(0, ids.size(1), dtype=torch.long, device=ids.device)
        t = self.transformer.wte(ids) + self.transformer.wpe(pos)
        for block in self.transformer.h:
            t = block(t)
        t = self.transformer.ln_f(t)
        if targets is None:
            return self.lm_head(t[:, [-1], :]), None
        logits = self.lm_head(t)
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)

    def configure_optimizers(self, decay=0.1, **kwargs):
        params = {n_: p for n_, p in self.named_parameters() if p.requires_grad}
        groups = [{'params': [p for p in params.values() if p.dim() >= 2], 'weight_decay': decay}, {'params': [p for p in params.values() if p.dim() < 2], 'weight_decay': 0.0}]
        return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), **kwargs)

    @torch.no_grad()
    def generate(self, ids, new, temperature=1.0, top_k=None):
        for _ in range(new):
            logits, _ = self(ids[:, -self.block:])
            logits = logits[:, -1, :] / temperature
            if top_k is not None:
                v, _ = torch.topk(logits, min(top_k, logits.size(-1)))
                logits[logits < v[:, [-1]]] = -float('Inf')
            ids = torch.cat((ids, torch.multinomial(F.softmax(logits, dim=-1), num_samples=1)), dim=1)
        return ids


class ResBlock(nn.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout)
        self.conv2, self.bn2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False), nn.BatchNorm2d(cout)
        self.down = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout)) if stride != 1 or cin != cout else nn.Identity()

    def forward(self, t):
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(t)), inplace=True))) + self.down(t))


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.mu, self.logvar, self.dec = nn.Linear(5, 6), nn.Linear(6, 2), nn.Linear(6, 2), nn.Linear(2, 5)

    def forward(self, t):
        hid = F.elu(self.enc(t))
        mu, logvar = self.mu(hid), self.logvar(hid)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        recon = torch.sigmoid(self.dec(z))
        kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        return recon, F.binary_cross_entropy(recon, torch.sigmoid(t), reduction='sum') + kld


class LoRALinear(nn.Module):
    def __init__(self, base, r=2, alpha=4):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Parameter(base.weight.new_empty(r, base.in_features))
        self.lora_B = nn.Parameter(base.weight.new_zeros(base.out_features, r))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.scaling = alpha / r

    def forward(self, t):
        return self.base(t) + (t @ self.lora_A.T @ self.lora_B.T) * self.scaling


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, i):
        ctx.save_for_backward(i)
        return i * torch.sigmoid(i)

    @staticmethod
    def backward(ctx, g):
        i, = ctx.saved_tensors
        s = torch.sigmoid(i)
        return g * (s * (1 + i * (1 - s)))


class STE(torch.autograd.Function):
    @staticmethod
    def forward(i, scale):
        return torch.round(i / scale) * scale

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, g):
        return g, None


class GradReverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, lambd):
        ctx.lambd = lambd
        return t.view_as(t)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g.neg() * ctx.lambd, None


class Boxes(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types_, args=(), kwargs=None):
        out = super().__torch_function__(func, types_, args, kwargs or {})
        calls.append(getattr(func, '__name__', str(func)))
        return out


calls = []


class Unit:
    def __init__(self, value, unit):
        self.value, self.unit = value, unit

    @classmethod
    def __torch_function__(cls, func, types_, args=(), kwargs=None):
        args = [a.value if isinstance(a, Unit) else a for a in args]
        return Unit(func(*args, **(kwargs or {})), 'of ' + func.__name__)


class ModelEMA:
    def __init__(self, model, decay=0.99):
        self.module = copy.deepcopy(model).eval()
        self.decay = decay
        for p in self.module.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for e, v in zip(self.module.state_dict().values(), model.state_dict().values()):
            e.copy_(e * self.decay + (1.0 - self.decay) * v if e.is_floating_point() else v)


class Texts(data.Dataset):
    def __init__(self, size=6):
        self.rows = [{'input_ids': list(range(1, 2 + i % 3)), 'label': i % 2, 'name': f't{i}'} for i in range(size)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def pad_collate(rows):
    ids = nn.utils.rnn.pad_sequence([torch.tensor(r['input_ids']) for r in rows], batch_first=True, padding_value=0)
    return {'input_ids': ids, 'attention_mask': (ids != 0).long(), 'labels': torch.tensor([r['label'] for r in rows]), 'names': [r['name'] for r in rows]}


def to_device(obj, where):
    if torch.is_tensor(obj):
        return obj.to(where, non_blocking=True)
    if isinstance(obj, dict):
        return {k: to_device(v, where) for k, v in obj.items()}
    return type(obj)(to_device(v, where) for v in obj) if isinstance(obj, (list, tuple)) else obj


def seed_worker(worker_id):
    np.random.seed(torch.initial_seed() % 2**32)
    random.seed(torch.initial_seed() % 2**32)


def accuracy(output, target, topk=(1,)):
    with torch.no_grad():
        _, pred = output.topk(max(topk), 1, True, True)
        correct = pred.t().eq(target.view(1, -1).expand_as(pred.t()))
        return [correct[:k].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / target.size(0)) for k in topk]


def rotate_half(t):
    a, b = t.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def precompute_freqs_cis(dim, end, theta=10000.0, device=None):
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2, device=device)[: dim // 2].float() / dim))
    freqs = torch.outer(torch.arange(end, device=device, dtype=torch.float32), freqs)
    return torch.polar(torch.ones_like(freqs), freqs)


def timestep_embedding(steps, dim, max_period=10000):
    half = dim // 2
    freqs = torch.exp(-math.log(max_period) * torch.arange(start=0, end=half, dtype=torch.float32) / half).to(device=steps.device)
    args = steps[:, None].float() * freqs[None]
    emb = torch.cat([torch.cos(args), torch.sin(args)], dim=-1)
    return torch.cat([emb, torch.zeros_like(emb[:, :1])], dim=-1) if dim % 2 else emb


def top_p(logits, p=0.9):
    ordered, where = torch.sort(logits, descending=True)
    remove = torch.cumsum(F.softmax(ordered, dim=-1), dim=-1) > p
    remove[..., 1:] = remove[..., :-1].clone()
    remove[..., 0] = 0
    return logits.masked_fill(remove.scatter(1, where, remove), float('-inf'))


def box_iou(a, b):
    area = lambda t: (t[:, 2] - t[:, 0]) * (t[:, 3] - t[:, 1])
    lt, rb = torch.max(a[:, None, :2], b[:, :2]), torch.min(a[:, None, 2:], b[:, 2:])
    wh = (rb - lt).clamp(min=0)
    inter = wh[:, :, 0] * wh[:, :, 1]
    return inter / (area(a)[:, None] + area(b) - inter)


def gae(rewards, values, dones, gamma=0.99, lam=0.95):
    adv, last = torch.zeros_like(rewards), 0
    for t in reversed(range(rewards.size(0) - 1)):
        alive = 1.0 - dones[t + 1]
        delta = rewards[t] + gamma * values[t + 1] * alive - values[t]
        adv[t] = last = delta + gamma * lam * alive * last
    return adv


def graphed(f):
    if not CUDA:
        return f()
    s = torch.cuda.Stream()
    s.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s):
        for _ in range(3):
            f()
    torch.cuda.current_stream().wait_stream(s)
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        out = f()
    g.replay()
    return out


def kinds(obj):
    return {k: (tuple(v.shape), v.dtype, on(v)) if torch.is_tensor(v) else v for k, v in obj.items()}


def shapes(ts):
    return [tuple(t.shape) for t in ts]


def custom_square():
    @torch.library.custom_op('third::square', mutates_args=())
    def square(a: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return a * a * scale

    square.register_fake(lambda a, scale=1.0: torch.empty_like(a))
    square.register_autograd(lambda ctx, g: (2 * ctx.saved_tensors[0] * g * ctx.scale, None), setup_context=lambda ctx, inputs, output: (ctx.save_for_backward(inputs[0]), setattr(ctx, 'scale', inputs[1])))
    return square


ids = torch.randint(1, 20, (2, 6), device=D)
for each in (Net, GPT, Block, RMSNorm, VAE, Rows, Texts, LoRALinear):
    setattr(sys.modules['__main__'], each.__name__, each)


def hf(*names):
    import importlib
    try:
        import torchaudio
    except (ImportError, OSError):  # one built for another torch: there as a name alone
        for each in [k for k in sys.modules if k.partition('.')[0] == 'torchaudio']:
            del sys.modules[each]
        sys.modules['torchaudio'] = stub = types.ModuleType('torchaudio')
        stub.__spec__, stub.__version__ = importlib.machinery.ModuleSpec('torchaudio', None), '2.0'
    import transformers
    return [getattr(transformers, each) for each in names]
"""

LINES = r"""
x[:, None, ::2][..., -1]
x[np.array([0, 2])][:, [1, -1]]
x[idx, lab] += 1; x[mask] = 0.; x[1:, 0] = h[1:, 0].to(D); x._version
hs = torch.randn(2, 7, 11, device=D); hs[torch.arange(hs.size(0), device=hs.device), torch.tensor([3, 6], device=D)]
x[idx.unsqueeze(1), torch.tensor([[0, 1], [2, 3], [4, 0]])]
row, col = torch.triu_indices(5, 5, offset=1, device=D); (x.T @ x)[row, col]
x.index_put_((idx, lab), x.new_ones(3), accumulate=True).view(-1)[1::4]
[r.shape for r in x], len(x), x[torch.tensor(1)].shape, x[True].shape, x[()].shape, x[-1, -1].ndim
labels = torch.full((2, 6), -100, device=D); labels[:, 2:] = ids[:, 2:]; labels[ids == 0] = -100; labels[..., 1:].contiguous()
h[h > 7].tolist(), h[torch.tensor([True, False, True])].sum().item(), h.nonzero().shape, h[:, [0, 2]].mean(dim=0).tolist()
torch.tensor([[1, 2.5], [True, 3]], device=D), torch.tensor([np.float32(1.), np.float32(2.)], device=D), torch.tensor([], device=D), torch.tensor(3 + 0j, device=D)
torch.as_tensor(np.arange(6, dtype=np.uint8).reshape(2, 3)[:, ::-1].copy()).to(D).float().div_(255).sub_(torch.tensor([.1, .2, .3], device=D))
torch.full((4, 4), float('-inf'), device=D).triu_(1), torch.zeros_like(x.T), torch.empty_like(img, memory_format=torch.channels_last), x.new_full((2,), 3, dtype=torch.long)
freqs = precompute_freqs_cis(8, 6, device=D); xq = torch.view_as_complex(seq.float().reshape(2, 6, -1, 2)); torch.view_as_real(xq * freqs).flatten(2).type_as(seq)
torch.stack(torch.meshgrid(torch.arange(4, device=D), torch.arange(3, device=D), indexing='ij'), dim=-1).reshape(-1, 2)
torch.tensor([x.mean(), x.sum(), 2.0], device=D), torch.stack([x.mean(), x.sum()])
(torch.cuda.FloatTensor if CUDA else torch.FloatTensor)(2, 3).fill_(1), (torch.cuda.LongTensor if CUDA else torch.LongTensor)([1, 2, 3])
torch.Tensor([1, 2, 3]).tolist(), torch.ByteTensor([1, 0, 1]).bool().tolist(), isinstance(x, torch.FloatTensor) != CUDA, x.type(torch.DoubleTensor).device.type, x.type(n.type()).dtype
torch.arange(0, 1, 0.1, device=D, dtype=torch.half), torch.logspace(-2, 2, 5, device=D), torch.linspace(0, 999, 50, dtype=torch.long, device=D).flip(0)
torch.set_default_device(D); a = torch.zeros(3); lin = nn.Linear(3, 2); torch.set_default_device(None); on(a, lin.weight), torch.zeros(1).device.type
torch.set_default_dtype(torch.float64); a = torch.tensor([1., 2.], device=D); w = nn.Linear(2, 2).to(D).weight; torch.set_default_dtype(torch.float32); a, w, (x > 1).float()
with torch.device(D): t = torch.arange(4) * 1.5; lay = nn.LSTM(4, 3); t, lay.weight_hh_l0, torch.get_default_device().type
h.to(x), x.to(h).device.type, h.to(x.device, torch.float16, copy=True), h.to(device=D, dtype=torch.bfloat16), x.to(D) is x, x.to(torch.float32) is x
m.to(device, torch.bfloat16, non_blocking=True); {k: (v.dtype, on(v)) for k, v in m.state_dict().items()}
net = Net().to(D).double().half(); net.steps.dtype, net.scale.dtype, net.norm.num_batches_tracked.dtype, next(net.parameters()).device.type
hp = h.pin_memory() if CUDA else h; dev = hp.to(D, non_blocking=True); dev.mul(2), hp.is_pinned() == CUDA, dev.is_pinned()
sd = reload(m.state_dict(), map_location='cpu'); m.load_state_dict(sd), {k: v.device.type for k, v in sd.items()}, on(*m.parameters())
fit(m, opt); ck = reload({'model': m.state_dict(), 'optimizer': opt.state_dict(), 'epoch': 3, 'best': 0.5}, map_location=device); opt.load_state_dict(ck['optimizer']); ck['epoch'], on(*ck['model'].values()), [opt.state[p]['momentum_buffer'] for p in m.parameters()]
reload({'a': x, 'b': h}, map_location=lambda storage, loc: storage)['a'].device.type, reload(x, map_location={'cuda:0': 'cpu'}).device.type, reload([x, x.T], weights_only=True)[1].stride()
torch.save(m.state_dict(), tmp('net.pt')); sd = torch.load(tmp('net.pt'), mmap=True, map_location='cpu', weights_only=True); list(sd), [v.shape for v in sd.values()]
bad = {k: v for k, v in m.state_dict().items() if not k.startswith('2')} | {'extra.weight': x}; r = m.load_state_dict(bad, strict=False); r.missing_keys, r.unexpected_keys, name(lambda: m.load_state_dict(bad))
from safetensors.torch import save_file, load_file; save_file({'w': h, 'b': h[0].clone()}, tmp('s.safetensors')); kinds(load_file(tmp('s.safetensors'), device=D))
whole = reload(m, weights_only=False); type(whole).__name__, whole(x), reload(Net().to(D), weights_only=False).scale
sch = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=10); fit(m, opt); sch.step(); st = copy.deepcopy(sch.state_dict()); sch.load_state_dict(reload(st, weights_only=False)); sch.last_epoch, sch.get_last_lr()
pickle.loads(pickle.dumps(x.T)), pickle.loads(pickle.dumps(nn.Parameter(x, requires_grad=False))), pickle.loads(pickle.dumps(torch.device(D, 0))).index, pickle.loads(pickle.dumps(torch.float16))
c = copy.deepcopy(m); c[0].weight is m[0].weight, [p.shape for p in c.parameters()], copy.copy(x).data_ptr() == x.data_ptr(), name(lambda: copy.deepcopy(m(x)))
def f(a, b: float = 2.0): return a.relu() * b + a.size(0); torch.jit.script(f)(x)
traced = torch.jit.trace(m.eval(), x); b = io.BytesIO(); torch.jit.save(traced, b); b.seek(0); again = torch.jit.load(b, map_location=D); again(x), [k for k, _ in again.named_parameters()]
sc = torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).to(D).eval()); fz = torch.jit.freeze(sc); fz(img), sc.code.count('forward') > 0
cu = torch.jit.CompilationUnit('def loop(a, k: int):\n    for i in range(k):\n        a = a + i\n    return a\n'); cu.loop(n, 3)
fm = lambda p, t: torch.func.functional_call(m, p, (t,)).sum(); per = torch.func.vmap(torch.func.grad(fm), in_dims=(None, 0))(dict(m.named_parameters()), x); {k: v.shape for k, v in per.items()}
from torch.func import stack_module_state, functional_call, vmap; nets = [nn.Linear(5, 2).to(D) for _ in range(3)]; ps, bs = stack_module_state(nets); base = copy.deepcopy(nets[0]).to('meta'); vmap(lambda p, b, t: functional_call(base, (p, b), (t,)), in_dims=(0, 0, None))(ps, bs, x)
torch.func.jacrev(m)(x[0]), torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))[1], torch.func.vjp(torch.exp, x)[1](x)[0]
torch.vmap(torch.dot)(x, x), torch.vmap(lambda t: t + torch.randn_like(t), randomness='different')(x), torch.vmap(lambda a, b: (a[:, None] * b).sum(), in_dims=(0, None), chunk_size=2)(x, x[0])
nt = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], layout=torch.jagged, device=D); out = nn.Linear(4, 2).to(D)(nt); out.values(), nt.offsets(), out.is_nested, nt.size(0), nt.dim()
nt = torch.nested.nested_tensor_from_jagged(torch.randn(5, 4, device=D), offsets=torch.tensor([0, 2, 5], device=D), max_seqlen=3, min_seqlen=2); F.layer_norm(nt * 2, (4,)).values(), nt.to_padded_tensor(0.0, output_size=(2, 3, 4))
s = torch.cuda.Stream() if CUDA else None; under(torch.cuda.stream(s), lambda: h.to(D, non_blocking=True) * 2), (s.wait_stream(torch.cuda.current_stream()), s.synchronize(), s.query()) if CUDA else (None, None, True)
ev = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if CUDA else []; [e.record() for e in ev]; torch.cuda.synchronize() if CUDA else None; type(ev[0].elapsed_time(ev[1])) if CUDA else float
static = torch.zeros(3, 5, device=D); y = graphed(lambda: m(static).softmax(-1)); static.copy_(x); y.detach().clone()
mod = nn.Sequential(nn.Linear(5, 4), nn.ReLU()).to(D); mod = torch.cuda.make_graphed_callables(mod, (torch.randn(3, 5, device=D),)) if CUDA else mod; mod(x).sum().backward(); grads(mod)
torch.cuda.is_available() == CUDA, torch.cuda.device_count() >= 1 or not CUDA, torch.cuda.current_device() if CUDA else 0, isinstance(torch.cuda.get_device_name(0), str) if CUDA else True, len(torch.cuda.get_device_capability()) if CUDA else 2, torch.cuda.is_initialized() == CUDA
big = torch.empty(1 << 20, device=D); live = torch.cuda.memory_allocated() if CUDA else 4 << 20; del big; peak = torch.cuda.max_memory_allocated() if CUDA else 4 << 20; live >= 4 << 20, peak >= live, (torch.cuda.memory_allocated() <= live - (4 << 20)) if CUDA else True
free, total = torch.cuda.mem_get_info() if CUDA else (1, 2); torch.cuda.reset_peak_memory_stats() if CUDA else None; 0 < free <= total, type(torch.cuda.memory_summary()) if CUDA else str, 'active_bytes.all.current' in torch.cuda.memory_stats() if CUDA else True
torch.backends.cuda.matmul.allow_tf32 = True; torch.backends.cudnn.benchmark = True; torch.set_float32_matmul_precision('high'); torch.get_float32_matmul_precision(), torch.backends.cudnn.deterministic, x @ x.T
g = torch.Generator(device=D).manual_seed(3); torch.randn(2, 3, generator=g, device=D), torch.randint(0, 9, (4,), generator=g, device=D), torch.randperm(5, generator=g, device=D), g.initial_seed(), g.device.type
with torch.random.fork_rng(devices=[0] if CUDA else []): torch.manual_seed(7); z = torch.randn(2, device=D); z, F.dropout(x, 0.5, training=True), torch.bernoulli(torch.full((3,), 0.3, device=D)), torch.normal(0.0, 1.0, (2,), device=D)
dl = data.DataLoader(Rows(), batch_size=3, shuffle=True, num_workers=2, pin_memory=CUDA, persistent_workers=True, worker_init_fn=seed_worker, generator=torch.Generator().manual_seed(1)); [(b.to(D, non_blocking=True), i.tolist()) for b, i in dl]
dl = data.DataLoader(Texts(), batch_size=4, collate_fn=pad_collate); [(b['input_ids'].tolist(), b['names'], to_device(b['attention_mask'], D)) for b in dl]
td = data.TensorDataset(x, lab); out = next(iter(data.DataLoader(td, batch_size=2))); out, len(td), td[0][1]
sorted(v for b in data.DataLoader(Lines(), batch_size=2, num_workers=2, prefetch_factor=2) for v in b.tolist()), data.default_collate([{'a': 1, 'b': np.ones(2)}, {'a': 2, 'b': np.zeros(2)}])['b'].dtype
torch.compile(m)(x)
fn = torch.compile(lambda a, b: F.gelu(a @ b.T) + a.sum(), fullgraph=True, dynamic=True, backend='aot_eager'); fn(x, x), fn(x[:2], x[:2])
cm = torch.compile(m, mode="reduce-overhead"); y = cm(x); y.sum().backward(); y.shape, grads(m), type(cm).__name__, list(cm.state_dict())[0]
with torch.autocast(device_type=D, dtype=torch.bfloat16): a = m(x); b = a.float().softmax(-1); d = F.mse_loss(a, b); a, b, d, torch.is_autocast_enabled(D)
scaler = torch.amp.GradScaler(D, init_scale=1024.0); state = scaler.state_dict(); loss = m(x).pow(2).mean(); scaler.scale(loss).backward(); scaler.unscale_(opt); nn.utils.clip_grad_norm_(m.parameters(), 1.0); scaler.step(opt); scaler.update(); state, scaler.is_enabled()
sc = torch.amp.GradScaler(D, enabled=False); sc.scale(m(x).sum()).backward(); sc.step(opt); sc.update(); sc.get_scale(), sc.state_dict(), torch.amp.GradScaler(D).get_scale()
alone(); ddp = nn.parallel.DistributedDataParallel(m, device_ids=[0] if CUDA else None); F.cross_entropy(ddp(x), lab.clamp(max=1)).backward(); list(ddp.state_dict())[:1], grads(ddp), under(ddp.no_sync(), lambda: ddp(x))
alone(); t = torch.ones(3, device=D); dist.all_reduce(t); out = [torch.empty(3, device=D)]; dist.all_gather(out, t); dist.broadcast(t, src=0); dist.barrier(); t, out, dist.get_rank(), dist.get_world_size(), dist.get_backend() == ('nccl' if CUDA else 'gloo')
alone(); from torch.distributed.fsdp import fully_shard; from torch.distributed.device_mesh import init_device_mesh; mesh = init_device_mesh(D, (1,)); [fully_shard(l, mesh=mesh) for l in m if len(list(l.parameters()))]; fully_shard(m, mesh=mesh); m(x).sum().backward(); type(m[0].weight).__name__, m[0].weight.to_local().shape, m[0].weight.grad.full_tensor().shape
alone(); from torch.distributed.tensor import distribute_tensor, Shard, Replicate, init_device_mesh; mesh = init_device_mesh(D, (1,), mesh_dim_names=('dp',)); dt = distribute_tensor(x, mesh, [Shard(0)]); (dt @ dt.T).redistribute(placements=[Replicate()]).to_local(), dt.placements, mesh['dp'].size()
from torch.utils.checkpoint import checkpoint; y = checkpoint(m, x.requires_grad_(), use_reentrant=False); y.sum().backward(); x.grad, grads(m)
torch.utils.checkpoint.checkpoint_sequential(m, 2, x.clone().requires_grad_(), use_reentrant=False).mean().backward(); blk = Block().to(D); torch.utils.checkpoint.checkpoint(blk, seq.requires_grad_(), use_reentrant=True, preserve_rng_state=True).sum().backward(); grads(m), seq.grad
from torch.utils.checkpoint import *; ctx = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]); checkpoint(lambda t: m(t.sin()).cos(), x.requires_grad_(), use_reentrant=False, context_fn=ctx).sum().backward(); x.grad
feats = {}; hk = [l.register_forward_hook(lambda mod, i, o, k=k: feats.update({k: o.detach()})) for k, l in m.named_children()]; m(x); [k.remove() for k in hk]; kinds(feats)
got = []; m[0].register_full_backward_hook(lambda mod, gi, go: got.append((gi[0], go[0].shape))); m[2].register_forward_pre_hook(lambda mod, a: (a[0] * 2,)); m(x.requires_grad_()).sum().backward(); got
y = x.clone().requires_grad_(); z = y * 3; z.retain_grad(); hook = y.register_hook(lambda g: g * 0.5); z.sum().backward(); hook.remove(); y.grad, z.grad, z.grad_fn.name(), z.is_leaf
for p in m.parameters(): p.opt = torch.optim.SGD([p], lr=0.1); p.register_post_accumulate_grad_hook(lambda q: [q.opt.step(), q.opt.zero_grad()][1]); y = m(x).sum().backward(); [p.grad for p in m.parameters()]
with torch.autograd.graph.save_on_cpu(pin_memory=CUDA): loss = m(x).pow(2).sum(); loss.backward(); packs = []; y = under(torch.autograd.graph.saved_tensors_hooks(lambda t: (packs.append(tuple(t.shape)), t)[1], lambda t: t), lambda: m(x).tanh()); grads(m), packs
b = torch.rand(4, 4, device=D).as_subclass(Boxes); type(b[:, :2]).__name__, type(b + 1).__name__, b.sum(dim=0), calls[-3:]
from torch.utils.flop_counter import FlopCounterMode; fc = FlopCounterMode(display=False); under(fc, lambda: GPT().to(D)(ids, ids)[1].backward()); fc.get_total_flops()
from torch.utils._python_dispatch import TorchDispatchMode; seen = []; Log = type('Log', (TorchDispatchMode,), {'__torch_dispatch__': lambda self, f, t, a=(), k=None: (seen.append(str(f)), f(*a, **(k or {})))[1]}); under(Log(), lambda: F.mse_loss(x * 2, x)); seen
x.detach().cpu().numpy().shape, h.numpy()[1:, 2].tolist(), np.asarray(h).dtype, np.add(h, 1).sum().item(), torch.from_numpy(np.eye(3)).to(D), x.cpu().half().numpy().dtype
name(lambda: x.numpy()) == ('TypeError' if CUDA else 'NoneType'), name(lambda: np.array(x)) == ('TypeError' if CUDA else 'NoneType'), name(lambda: m(x).cpu().numpy()), m(x).detach().to('cpu', torch.float64).numpy().dtype, h.numpy(force=True).mean().item()
torch.from_dlpack(x.T), torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x)), x.__dlpack_device__()[0] == (2 if CUDA else 1), np.from_dlpack(h).shape, torch.from_dlpack(x).data_ptr() == x.data_ptr()
from torch.nn.utils import parametrizations as P; l = P.weight_norm(nn.Linear(5, 4).to(D)); l(x), [k for k, _ in l.named_parameters()], nn.utils.parametrize.is_parametrized(l, 'weight'), P.orthogonal(nn.Linear(4, 4).to(D)).weight.shape
sn = nn.utils.spectral_norm(nn.Conv2d(3, 4, 3).to(D)); sn(img).mean().backward(); [k for k, _ in sn.named_buffers()], sn.weight_orig.grad, nn.utils.remove_spectral_norm(sn).weight
import torch.nn.utils.prune as prune; prune.l1_unstructured(m[0], 'weight', amount=0.3); prune.ln_structured(m[2], 'weight', 0.5, n=2, dim=0); keys = list(m.state_dict()); y = m(x); prune.remove(m[0], 'weight'); keys, y, type(m[0].weight).__name__
import torch.nn.utils.parametrize as parametrize; Sym = type('Sym', (nn.Module,), {'forward': lambda self, w: w.triu() + w.triu(1).transpose(-1, -2)}); sl = nn.Linear(5, 5).to(D); parametrize.register_parametrization(sl, 'weight', Sym()); under(parametrize.cached(), lambda: sl(sl(x))), list(sl.state_dict())
pi = torch.distributions.Categorical(logits=m(x)); a = pi.sample(); ratio = (pi.log_prob(a) - pi.log_prob(a).detach()).exp(); adv = torch.randn(3, device=D); -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean(), pi.entropy(), a
from torch.distributions import *; q = Normal(x, torch.ones_like(x)); kl_divergence(q, Normal(0., 1.)).sum(1), Independent(q, 1).log_prob(x), q.rsample((2,)), Bernoulli(logits=x).sample(), MultivariateNormal(torch.zeros(2, device=D), torch.eye(2, device=D)).rsample()
from torch.distributions import *; mix = MixtureSameFamily(Categorical(torch.ones(3, device=D)), Normal(torch.randn(3, device=D), torch.rand(3, device=D) + 0.1)); mix.log_prob(x), Dirichlet(torch.ones(4, device=D)).sample(), name(lambda: Normal(torch.zeros(1), torch.tensor([-1.])))
spec = torch.fft.rfft2(img, norm="ortho"); torch.fft.irfft2(spec * torch.randn(3, 8, 5, dtype=torch.cfloat, device=D), s=(8, 8), norm="ortho").shape, spec.dtype, torch.fft.fftshift(torch.fft.fftfreq(8, device=D)), torch.fft.fftn(img, dim=(-2, -1)).abs().shape
wave = torch.randn(2, 400, device=D); win = torch.hann_window(64, device=D); st = torch.stft(wave, 64, hop_length=16, window=win, center=True, return_complex=True); torch.istft(st, 64, hop_length=16, window=win, length=400).shape, st.abs().pow(2).clamp(min=1e-10).log10().shape
A = torch.randn(4, 4, device=D, dtype=torch.float64); S = A @ A.mT + torch.eye(4, device=D); shapes([*torch.linalg.svd(A[:, :3], full_matrices=False), torch.linalg.cholesky(S), *torch.linalg.eigh(S), *torch.linalg.qr(A), torch.linalg.solve(S, A), torch.linalg.inv_ex(S)[1], torch.linalg.eigvals(A)]), torch.linalg.eigvals(A).dtype, torch.linalg.slogdet(S).logabsdet.dtype
q, k, v = seq.unflatten(-1, (2, 4)).transpose(1, 2).repeat(3, 1, 1, 1).chunk(3); w = torch.einsum('bhid,bhjd->bhij', q, k).softmax(-1); torch.einsum('b h i j, b h j d -> b i h d', w, v).shape, torch.einsum('ij->ji', x), torch.einsum('i,j', x[0], x[1]), torch.einsum('...ij,...jk', img, img).shape
cl = img.to(memory_format=torch.channels_last); net = ResBlock(3, 8, 2).to(D).to(memory_format=torch.channels_last); y = net(cl); y.shape, y.is_contiguous(memory_format=torch.channels_last), cl.stride(), net.conv1.weight.stride()
F.conv_transpose2d(img, torch.randn(3, 2, 4, 4, device=D), stride=2, padding=1).shape, F.conv1d(seq, torch.randn(4, 3, 3, device=D), groups=2, padding='same').shape, nn.Conv3d(3, 2, 1).to(D)(img[:, :, None]).shape, nn.Conv2d(3, 6, 3, dilation=2, groups=3, padding_mode='reflect', padding=2, device=D)(img).shape
theta = torch.tensor([[1., 0., 0.1], [0., 1., -0.1]], device=D).expand(2, 2, 3); grid = F.affine_grid(theta, img.shape, align_corners=False); F.grid_sample(img, grid, mode='bilinear', padding_mode='border', align_corners=False).shape, grid.shape
F.interpolate(img, scale_factor=2, mode='bicubic', align_corners=True, antialias=True).shape, F.interpolate(img, size=(5, 7), mode='nearest-exact').shape, nn.Upsample(scale_factor=(2, 1), mode='nearest')(img).shape, F.adaptive_avg_pool2d(img, (None, 1)).shape, F.interpolate(seq, size=4, mode='linear').shape
cols = F.unfold(img, 4, stride=4); back = F.fold(cols, (8, 8), 4, stride=4); cols.shape, back.shape, F.pixel_unshuffle(img, 2).shape, nn.PixelShuffle(2)(img.repeat(1, 4, 1, 1)).shape, F.pad(img, (1, 2, 0, 1), mode='reflect').shape, nn.ZeroPad2d(1)(img).shape, F.channel_shuffle(img.repeat(1, 2, 1, 1), 2).shape
patches = nn.Conv2d(3, 16, 4, 4).to(D)(img).flatten(2).transpose(1, 2); cls = nn.Parameter(torch.zeros(1, 1, 16, device=D)); torch.cat((cls.expand(img.shape[0], -1, -1), patches), dim=1) + torch.randn(1, 5, 16, device=D)
pk = nn.utils.rnn.pack_padded_sequence(seq, [6, 4], batch_first=True); out, (hn, cn) = nn.LSTM(8, 5, 2, batch_first=True, bidirectional=True).to(D)(pk); y, ls = nn.utils.rnn.pad_packed_sequence(out, batch_first=True); out.data.shape, pk.batch_sizes.tolist(), y.shape, ls.tolist(), hn.shape, cn.shape
pk = nn.utils.rnn.pack_padded_sequence(seq, torch.tensor([3, 6]), batch_first=True, enforce_sorted=False); o, hn = nn.GRU(8, 4, batch_first=True, device=D)(pk); pk.sorted_indices.dtype, on(pk.unsorted_indices), nn.utils.rnn.pad_packed_sequence(o, True, total_length=8)[0].shape, hn.shape
enc = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True, activation='gelu'), 2).to(D); kpm = torch.tensor([[False] * 6, [False] * 4 + [True] * 2], device=D); enc(seq, mask=nn.Transformer.generate_square_subsequent_mask(6, device=D), src_key_padding_mask=kpm.float().masked_fill(kpm, float('-inf')), is_causal=True).shape
dec = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.).to(D); tgt = seq.transpose(0, 1); dec(tgt, tgt * 2, tgt_mask=torch.triu(torch.ones(6, 6, dtype=torch.bool, device=D), 1)).shape, nn.Transformer(8, 2, 1, 1, 16, batch_first=True, device=D)(seq, seq[:, :3]).shape
mha = nn.MultiheadAttention(8, 2, kdim=4, vdim=4, add_bias_kv=True, batch_first=True).to(D); o, w = mha(seq, seq[..., :4], seq[..., 4:], need_weights=True, average_attn_weights=False); o.shape, w.shape, mha(seq, seq[..., :4], seq[..., 4:], need_weights=False)[1], sorted(k for k, _ in mha.named_parameters())
from torch.nn.attention import sdpa_kernel, SDPBackend; q = seq.view(2, 6, 2, 4).transpose(1, 2); bias = torch.zeros(6, 6, device=D).masked_fill(torch.ones(6, 6, device=D).tril() == 0, float('-inf')); under(sdpa_kernel([SDPBackend.MATH]), lambda: F.scaled_dot_product_attention(q, q, q, attn_mask=bias)).shape, F.scaled_dot_product_attention(q, q[:, :1], q[:, :1], enable_gqa=True, is_causal=True).shape
from torch.nn.attention.flex_attention import flex_attention, create_block_mask; q = torch.randn(1, 2, 128, 16, device=D); bm = create_block_mask(lambda b, hd, i, j: i >= j, None, None, 128, 128, device=D); flex_attention(q, q, q, block_mask=bm).shape, flex_attention(q, q, q, score_mod=lambda s, b, hd, i, j: s + (j - i)).shape, bm.shape, bm.kv_num_blocks.dtype
kv = torch.zeros(2, 2, 16, 4, device=D); new = torch.randn(2, 2, 1, 4, device=D); kv[:, :, 5:6] = new; kv.index_copy_(2, torch.tensor([6], device=D), new); F.scaled_dot_product_attention(new, kv[:, :, :7], kv[:, :, :7], scale=0.5).shape, rotate_half(new).shape, kv._version
F.cross_entropy(x, lab, weight=torch.ones(5, device=D), label_smoothing=0.1, ignore_index=-100, reduction='none'), F.cross_entropy(x, x.softmax(-1)), F.nll_loss(x.log_softmax(1), lab), F.cross_entropy(torch.randn(2, 4, 8, 8, device=D), torch.zeros(2, 8, 8, dtype=torch.long, device=D))
F.binary_cross_entropy_with_logits(x, (x > 3).float(), pos_weight=x.new_tensor(2.)), F.smooth_l1_loss(x, x.flip(0), beta=0.5), F.kl_div(x.log_softmax(-1), x.softmax(-1), reduction='batchmean'), F.huber_loss(x, x, reduction='sum'), F.gaussian_nll_loss(x, x, x + 1), F.poisson_nll_loss(x, x)
lp = torch.randn(6, 2, 20, device=D).log_softmax(2).requires_grad_(); F.ctc_loss(lp, torch.randint(1, 20, (2, 3), device=D), (6, 6), (3, 2), blank=0, zero_infinity=True).backward(); lp.grad.shape
logits = F.normalize(seq[:, 0], dim=-1) @ F.normalize(seq[:, 1], dim=-1).t() * nn.Parameter(torch.tensor(math.log(1 / 0.07))).to(D).exp(); tgt = torch.arange(2, device=D); (F.cross_entropy(logits, tgt) + F.cross_entropy(logits.t(), tgt)) / 2
w = m[0].weight; name(lambda: w.add_(1)), name(lambda: x.view(4, 4)), name(lambda: x @ x), name(lambda: m(x.long())), name(lambda: F.cross_entropy(x, lab.float())), name(lambda: x.T.view(-1)), name(lambda: torch.cat([x, img])), name(lambda: x[3]), name(lambda: x.foo), name(lambda: torch.zeros(-1, device=D))
name(lambda: x + h) == ('RuntimeError' if CUDA else 'NoneType'), name(lambda: m(h)) == ('RuntimeError' if CUDA else 'NoneType'), name(lambda: torch.cat([x, h])) == ('RuntimeError' if CUDA else 'NoneType'), x + torch.tensor(2.0), x * h[0, 1], name(lambda: F.embedding(n, h)) == ('RuntimeError' if CUDA else 'IndexError')
a = x.clone().requires_grad_(); b = a.exp(); b.add_(1); e1 = name(lambda: b.sum().backward()); c = (a * a).sum(); c.backward(); e1, name(lambda: c.backward()), str(caught(lambda: m(x).backward())).split(' for')[0], name(lambda: (x * 2).sum().backward())
v = x.view(-1); v[0] = 9; d = x.detach(); d.zero_(); x._version, v._version, d._version, x.data._version, v._base is x, x.is_set_to(x.view(3, 5)), d.untyped_storage().nbytes(), x.resize_(2, 2).shape, v._is_view()
with torch.inference_mode(): y = m(x); y.is_inference(), name(lambda: y.mul_(2)), name(lambda: (y * nn.Parameter(x[:, :2])).sum()), torch.is_grad_enabled(), under(torch.set_grad_enabled(False), lambda: m(x)).requires_grad, torch.no_grad()(m)(x).grad_fn
a = x.requires_grad_(); g, = torch.autograd.grad(a.pow(3).sum(), a, create_graph=True); gp = ((g.norm(2, dim=1) - 1) ** 2).mean(); gp.backward(); g, a.grad, torch.autograd.grad(m(x).sum(), [*m.parameters(), nn.Parameter(x[0].detach())], allow_unused=True)[-1]
gpt = GPT().to(D); o = gpt.configure_optimizers(fused=True); _, loss = gpt(ids, ids); loss.backward(); o.step(); o.zero_grad(set_to_none=True); len(o.state), [len(g['params']) for g in o.param_groups], kinds(o.state[gpt.lm_head.weight]), o.defaults['betas']
o = torch.optim.Adam(m.parameters(), lr=torch.tensor(1e-3), foreach=False, amsgrad=True); fit(m, o); st = o.state_dict(); sorted(st['state'][0]), st['state'][0]['step'].item(), st['state'][0]['step'].device.type, st['param_groups'][0]['lr'].item(), st['state'][1]['exp_avg_sq']
o = torch.optim.AdamW([{'params': m[0].parameters()}, {'params': m[2].parameters(), 'lr': 1e-4}], lr=1e-3, foreach=True, capturable=CUDA); fit(m, o, 3); o.add_param_group({'params': [nn.Parameter(x)]}); [g['lr'] for g in o.param_groups], o.state[m[0].bias]['exp_avg']
o = torch.optim.Muon([m[0].weight], lr=0.02, weight_decay=0.0); fit(m, o); o.state[m[0].weight]
emb = nn.Embedding(9, 3, sparse=True).to(D); sp = torch.optim.SparseAdam(emb.parameters()); emb(n[:2, :4]).sum().backward(); sp.step(); emb.weight.grad.layout, sp.state[emb.weight]["exp_avg"]
for i in range(4): loss = m(x).mean() / 2; loss.backward(); (opt.step(), opt.zero_grad(set_to_none=False)) if (i + 1) % 2 == 0 else None; [p.grad.shape for p in m.parameters()], opt.param_groups[0]['momentum'], repr(opt).split()[0]
from torch.optim.lr_scheduler import *; s = SequentialLR(opt, [LinearLR(opt, 0.1, total_iters=2), CosineAnnealingLR(opt, 4)], milestones=[2]); lrs = [(opt.step(), s.step(), round(s.get_last_lr()[0], 6))[2] for _ in range(5)]; lrs
sch = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, 'min', factor=0.5, patience=1); [sch.step(v) for v in (1.0, 1.0, 1.0, 1.0)]; lam = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 10)); sch.num_bad_epochs, opt.param_groups[0]['lr'], lam.get_last_lr()
from torch.optim.swa_utils import *; avg = AveragedModel(m, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True); fit(m, opt); avg.update_parameters(m); avg.update_parameters(m); avg.n_averaged.dtype, avg(x), list(avg.state_dict())[:2], SWALR(opt, swa_lr=0.05, anneal_epochs=2).get_last_lr()
ema = ModelEMA(net := Net().to(D)); [(net(ids).sum().backward(), ema.update(net)) for _ in range(2)]; torch._foreach_mul_(list(ema.module.parameters()), 0.5); [p.requires_grad for p in ema.module.parameters()], kinds(ema.module.state_dict())
ep = torch.export.export(m.eval(), (x,)); [nd.op for nd in ep.graph.nodes].count('call_function') > 0, ep.module()(x), list(ep.state_dict)
from torch.fx.experimental.proxy_tensor import make_fx; g = make_fx(lambda a: a.relu().sum(0) + 1)(x); [str(nd.target) for nd in g.graph.nodes], torch.fx.passes.shape_prop.ShapeProp(torch.fx.symbolic_trace(m)).propagate(x).shape
qm = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(5, 4), nn.ReLU()), {nn.Linear}, dtype=torch.qint8); type(qm[0]).__module__.split('.')[-1], qm(h).shape, torch.quantize_per_tensor(h, 0.1, 0, torch.quint8).int_repr().dtype, torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255)
xs = x.clone().requires_grad_(); Swish.apply(xs).sum().backward(); y = STE.apply(m(x), 0.5); y.mean().backward(); GradReverse.apply(m[0](x), 0.3).sum().backward(); xs.grad, y.grad_fn.name(), grads(m), torch.func.grad(lambda t: STE.apply(t, 0.1).sum())(x)
sq = custom_square(); xs = x.clone().requires_grad_(); sq(xs, 0.5).sum().backward(); xs.grad, torch.ops.third.square(x), torch.compile(sq, backend='aot_eager')(x), sq._name
z = torch.complex(x, x + 1).requires_grad_(); (z * z.conj()).real.sum().backward(); z.grad, torch.angle(z), z.conj().is_conj(), z.mT.resolve_conj(), torch.view_as_real(z.detach()), z.real.stride(), z.abs().dtype, torch.polar(x, x).dtype
n & 3, n | 8, ~n, n << 1, (n.unsqueeze(-1) & (1 << torch.arange(4, device=D))).ne(0).byte().sum(-1), mask & ~mask, (x > 2) | (x < 1), n % 3, torch.div(n, 2, rounding_mode="floor")
scale = x.abs().amax(dim=-1, keepdim=True).clamp(min=1e-8) / 127; q8 = (x / scale).round().clamp(-128, 127).to(torch.int8); f8 = x.to(torch.float8_e4m3fn); q8, q8.float() * scale, f8, f8.to(torch.bfloat16), f8.element_size(), x.bfloat16().view(torch.int16), torch.finfo(torch.float8_e5m2).max
src, dst = torch.tensor([[0, 1, 2, 2], [1, 0, 0, 1]], device=D); deg = torch.zeros(3, device=D).scatter_add_(0, dst, torch.ones(4, device=D)); agg = torch.zeros_like(x).index_add_(0, dst, x[src]); agg / deg.clamp(min=1).unsqueeze(-1), x.new_zeros(3, 5).scatter_reduce(0, dst[:, None].expand(-1, 5), x[src], 'amax', include_self=False)
torch.gather(x, 1, lab.unsqueeze(1)).squeeze(1), F.one_hot(lab, num_classes=5), torch.zeros(3, 5, device=D).scatter_(1, lab[:, None], 1.0), x.take_along_dim(x.argsort(1), 1), x.take(idx), x.index_select(0, idx), x.index_fill(1, idx, -1.), x.put(idx, x[:, 0]), torch.isin(n, idx)
edges = torch.tensor([0., 3., 8.], device=D); torch.bucketize(x, edges, right=True), torch.searchsorted(edges, x, out_int32=True), torch.histc(x, bins=4, min=0, max=15), torch.segment_reduce(x, 'mean', lengths=torch.tensor([1, 2], device=D), unsafe=True), torch.cummax(x, 1).indices
emb = nn.EmbeddingBag(20, 4, mode='mean', include_last_offset=True).to(D); emb(torch.randint(0, 20, (7,), device=D), torch.tensor([0, 3, 7], device=D)), F.embedding(ids, torch.randn(20, 3, device=D), padding_idx=0, max_norm=1.0), F.embedding_bag(ids, torch.randn(20, 3, device=D), mode='sum')
tgt_q = torch.rand(3, 4, device=D).max(1)[0].detach(); q = torch.rand(3, 4, device=D, requires_grad=True).gather(1, idx.view(-1, 1)); loss = F.smooth_l1_loss(q, (1.0 + 0.99 * tgt_q * (1 - mask[:, 0].float())).unsqueeze(1)); loss, gae(torch.rand(5, 2, device=D), torch.rand(5, 2, device=D), torch.zeros(5, 2, device=D))
val, ind = x.topk(2, dim=1, largest=False); val, ind, x.sort(dim=0, descending=True, stable=True).indices, x.median(dim=1), x.aminmax(dim=0)
accuracy(m(x), lab.clamp(max=1), topk=(1, 2)), torch.multinomial(top_p(x).softmax(-1), 1), GPT().to(D).eval().generate(ids[:, :2], 4, top_k=3)
boxes = torch.rand(4, 4, device=D); boxes[:, 2:] += boxes[:, :2]; iou = box_iou(boxes, boxes[:2]); best, which = iou.max(dim=1); best.ge(0.5), which, torch.stack(boxes.unbind(-1), -1), boxes.clamp(min=0, max=1).split([2, 2], dim=-1)
t = torch.randint(0, 1000, (2,), device=D).long(); betas = torch.linspace(1e-4, 0.02, 1000, device=D); ac = torch.cumprod(1. - betas, dim=0); pick = lambda a: a.gather(-1, t).reshape(2, *((1,) * (img.dim() - 1))); pick(ac.sqrt()) * img + pick((1 - ac).sqrt()) * torch.randn_like(img), timestep_embedding(t, 7), F.pad(ac[:-1], (1, 0), value=1.0)
from einops import rearrange, reduce, repeat, einsum; rearrange(img, 'b c (h p) (w q) -> b (h w) (p q c)', p=4, q=4).shape, reduce(img, 'b c (h 2) (w 2) -> b c h w', 'max'), repeat(x, 'i j -> i k j', k=2), einsum(x, x, 'i d, j d -> i j'), rearrange([x, x], 's i j -> i (s j)')
cfg, LM = hf("GPT2Config", "GPT2LMHeadModel"); lm = LM(cfg(vocab_size=20, n_positions=16, n_embd=8, n_layer=2, n_head=2)).to(D); out = lm(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids, use_cache=True); out.loss.backward(); out.logits.shape, out.past_key_values.get_seq_length(), lm.num_parameters(), out.loss
cfg, LM = hf("LlamaConfig", "LlamaForCausalLM"); lm = LM(cfg(vocab_size=20, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1)).to(D, torch.bfloat16).eval(); lm(ids).logits, lm.get_input_embeddings().weight.dtype
cfg, Bert = hf("BertConfig", "BertForSequenceClassification"); bert = Bert(cfg(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=3)).to(D); am = torch.tensor([[1] * 6, [1] * 4 + [0] * 2], device=D); o = bert(ids, attention_mask=am, labels=torch.tensor([0, 2], device=D), output_hidden_states=True); o.loss, o.logits, len(o.hidden_states)
warm, = hf("get_cosine_schedule_with_warmup"); s = warm(opt, 2, 10); [(opt.step(), s.step(), s.get_last_lr()[0])[2] for _ in range(3)]
with torch.device('meta'): big = nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4)); e = name(lambda: big.to(D)); big.to_empty(device=D); [nn.init.ones_(p) for p in big.parameters()]; e, big(x), big[0].weight.is_meta
net = Net().to(D); [(k, type(c).__name__) for k, c in net.named_modules()], [k for k, _ in net.named_buffers()], list(net.state_dict()), sum(p.numel() for p in net.parameters() if p.requires_grad), net.get_submodule('norm').eps, net.get_parameter('head.bias')
pd = nn.ParameterDict({'a': nn.Parameter(x), 'b': torch.ones(2, device=D)}); pl = nn.ParameterList([torch.zeros(2, device=D) for _ in range(2)]); md = nn.ModuleDict({'lin': nn.Linear(5, 2), 'act': nn.ReLU()}).to(D); list(pd), 'a' in pd, type(pd['b']).__name__, len(pl), md['act'](md['lin'](x)), repr(md).splitlines()[1].strip()
lz = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(2)).to(D); before = type(lz[0].weight).__name__; y = lz(img); before, type(lz[0]).__name__, y, lz[3].in_features, name(lambda: nn.LazyLinear(2).weight.shape)
[f(torch.empty(4, 6, device=D)) for f in (nn.init.xavier_uniform_, nn.init.kaiming_normal_, nn.init.orthogonal_, nn.init.trunc_normal_)], nn.init.calculate_gain('leaky_relu', 0.2), nn.init.constant_(m[0].bias, 0.1), nn.init.dirac_(torch.empty(3, 3, 3, device=D)), nn.init.sparse_(torch.empty(4, 4, device=D), 0.5)
lora = LoRALinear(nn.Linear(5, 4).to(D)); lora(x).sum().backward(); [(k, p.requires_grad, p.grad is None) for k, p in lora.named_parameters()], lora.base.weight.data.addmm_(lora.lora_B.detach(), lora.lora_A.detach(), alpha=2.0), VAE().to(D)(x)
m.requires_grad_(False); m[2].requires_grad_(True); m[1] = nn.Identity(); m.append(nn.Softmax(-1)); [p.requires_grad for p in m.parameters()], m.eval().training, m(x), len(m[:2])
bn = nn.BatchNorm2d(3).to(D); bn(img); fused = nn.utils.fusion.fuse_conv_bn_eval(nn.Conv2d(3, 3, 1).to(D).eval(), bn.eval()); fused.weight, bn.running_var, on(bn.num_batches_tracked), type(nn.SyncBatchNorm.convert_sync_batchnorm(bn)).__name__
total = nn.utils.clip_grad_norm_(m.parameters(), 1.0) if fit(m, opt) is not None else 0; vec = nn.utils.parameters_to_vector(m.parameters()); nn.utils.vector_to_parameters(vec * 0.9, m.parameters()); gs = [p.grad for p in m.parameters()]; nn.utils.clip_grads_with_norm_(m.parameters(), 1.0, nn.utils.get_total_norm(gs)); nn.utils.clip_grad_value_(m.parameters(), 0.5); total, vec, torch.stack(torch._foreach_norm(gs)).norm()
from torch.utils import benchmark; t = benchmark.Timer('a @ a.T', globals={'a': x}, num_threads=1); type(t.timeit(2)).__name__, torch.utils.data.get_worker_info(), torch.get_num_threads() > 0, type(torch.__config__.show()), hasattr(torch.version, 'cuda')
from torch.profiler import profile, ProfilerActivity, record_function, schedule; prof = profile(activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * CUDA, record_shapes=True, schedule=schedule(wait=1, warmup=1, active=1)); under(prof, lambda: [(under(record_function('fwd'), lambda: m(x)), prof.step()) for _ in range(3)]); type(prof.key_averages().table(sort_by='cpu_time_total', row_limit=3)).__name__, prof.step_num
sp = torch.sparse_coo_tensor(torch.tensor([[0, 1, 2], [2, 0, 1]]), torch.tensor([3., 4., 5.]), (3, 3), device=D); torch.sparse.mm(sp, x).shape, sp.coalesce().values(), sp.to_dense(), h.to_sparse_csr().crow_indices().tolist(), sp.layout, sp.is_sparse
from torchvision.models import resnet18; rn = resnet18(num_classes=3).to(D, memory_format=torch.channels_last); rn.fc = nn.Identity(); o = rn(torch.randn(2, 3, 32, 32, device=D)); o.shape, sum(p.numel() for p in rn.parameters())
import timm; vit = timm.create_model('vit_tiny_patch16_224', img_size=32, depth=1, num_classes=4).to(D); vit(torch.randn(2, 3, 32, 32, device=D)), sorted(vit.no_weight_decay()), vit.patch_embed.num_patches
from PIL import Image; pil = Image.fromarray(np.zeros((6, 4, 3), np.uint8)); t = torch.from_numpy(np.array(pil)).permute(2, 0, 1).contiguous().to(D); t.float().div(255).unsqueeze(0), t.stride(), (t * 1.0).clamp(0, 255).to(torch.uint8).permute(1, 2, 0).cpu().numpy().shape
x.sum().item() >= 0
keep = (x > 3).nonzero(as_tuple=True); keep[0].dtype
o = torch.optim.LBFGS(m.parameters(), max_iter=2); o.step(lambda: (o.zero_grad(), (l := m(x).pow(2).mean()).backward(), l)[2]).shape
if x.max() > 3: x = x * 2; x
"""
