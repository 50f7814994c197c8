SETUP += """
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
