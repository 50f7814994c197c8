"""Everyday lines of PyTorch: what each makes on the device D, a line of text each. Run here and on a virtual GPU."""
import copy, io, pickle, tempfile, os, sys, warnings, math, functools, collections
import numpy as np, torch
import torch.nn as nn, torch.nn.functional as F
warnings.filterwarnings("ignore")
D = "cuda" if torch.cuda.is_available() else "cpu"
LINES = r'''
x[:, [1, 2]]
x[range(3), [0, 1, 2]]
x[torch.tensor([0, 1])]
x[torch.tensor([0, 1], device=D)]
x[:, None, ..., 0]
x[x > 0].dim()
x[np.array([0, 2])]
x[np.int64(1)]
x[[0, 1], :][:, [2]]
x[(slice(None), [0, 1])]
x[torch.tensor([True, False, True, False, True])]
x[..., -1:]
x[1][2]
x[[True, False, True, False, True]]
torch.tensor([x[0, 0], x[1, 1]]).shape
torch.tensor([1, 2], device=D)
torch.tensor(range(4), device=D)
torch.tensor(np.arange(4.), device=D)
torch.tensor([[1, 2], [3, 4]], dtype=torch.float16, device=D)
torch.as_tensor([1., 2.], device=D)
torch.asarray([1., 2.], device=D)
torch.asarray(np.ones(3), device=D)
torch.from_numpy(np.ones(3)).to(D)
torch.tensor(3.5).to(D).item()
torch.tensor([1, 2, 3]).to(D).tolist()
torch.arange(5, device=D).tolist()
torch.stack([torch.tensor(i, device=D) for i in range(3)])
torch.cat([x, x], 1)
x.to("cpu").device
x.to(torch.device(D))
x.to(D, torch.float64)
x.to(dtype=torch.bfloat16, non_blocking=True)
x.to(torch.zeros(1, device=D, dtype=torch.float16))
x.to(D, copy=True) is x
x.to(D) is x
x.type(torch.float64)
x.half().float().double().int().long().bool()
x.type_as(torch.zeros(1, dtype=torch.float64, device=D))
x.new_zeros(3), x.new_ones(2), x.new_full((2,), 7), x.new_empty(4).shape, x.new_tensor([1.])
torch.zeros_like(x), torch.ones_like(x, dtype=torch.int), torch.full_like(x, 2)
torch.eye(4, device=D).to_sparse()
(torch.eye(4).to_sparse().to(D) @ torch.ones(4, 2, device=D))
torch.sparse.mm(torch.eye(4, device=D).to_sparse(), torch.ones(4, 2, device=D))
torch.sparse_coo_tensor([[0, 1], [1, 0]], [1., 2.], (2, 2), device=D).to_dense()
torch.eye(4, device=D).to_sparse_csr()
torch.sparse_csr_tensor([0, 1, 2], [0, 1], [1., 2.], device=D)
torch.nested.nested_tensor([torch.zeros(3), torch.zeros(5)], layout=torch.jagged, device=D).shape[0]
F.ctc_loss(torch.randn(50, 4, 20, device=D, requires_grad=True).log_softmax(2), torch.randint(1, 20, (4, 10), device=D), torch.full((4,), 50, device=D), torch.full((4,), 10, device=D)).shape
F.embedding(torch.tensor([[0, 1]], device=D), torch.zeros(5, 3, device=D))
F.one_hot(torch.tensor([0, 2], device=D), 4)
F.one_hot(torch.tensor([0, 2], device=D)).shape
F.grid_sample(torch.zeros(1, 3, 8, 8, device=D), torch.zeros(1, 4, 4, 2, device=D)).shape
F.interpolate(torch.zeros(1, 3, 8, 8, device=D), scale_factor=2, mode="bilinear").shape
F.unfold(torch.zeros(1, 3, 8, 8, device=D), 3).shape
F.scaled_dot_product_attention(*[torch.zeros(2, 4, 8, 16, device=D)] * 3, is_causal=True)
nn.MultiheadAttention(16, 4, batch_first=True).to(D)(*[torch.zeros(2, 5, 16, device=D)] * 3)[0]
nn.TransformerEncoderLayer(16, 4, batch_first=True).to(D)(torch.zeros(2, 5, 16, device=D))
nn.LSTM(8, 16, 2, batch_first=True, bidirectional=True).to(D)(torch.zeros(3, 7, 8, device=D))[0]
nn.GRU(8, 16).to(D)(torch.zeros(7, 3, 8, device=D))[0]
nn.utils.rnn.pack_padded_sequence(torch.zeros(3, 7, 8, device=D), torch.tensor([7, 5, 2]), batch_first=True).data
nn.LSTM(8, 16).to(D)(nn.utils.rnn.pack_padded_sequence(torch.zeros(7, 3, 8, device=D), torch.tensor([7, 5, 2])))[0].data
nn.utils.rnn.pad_packed_sequence(nn.LSTM(8, 16).to(D)(nn.utils.rnn.pack_padded_sequence(torch.zeros(7, 3, 8, device=D), torch.tensor([7, 5, 2])))[0])[0]
nn.utils.rnn.pad_sequence([torch.zeros(3, device=D), torch.zeros(5, device=D)], batch_first=True)
nn.BatchNorm2d(3).to(D)(torch.zeros(2, 3, 4, 4, device=D))
nn.LazyLinear(7).to(D)(torch.zeros(2, 5, device=D))
nn.Conv2d(3, 8, 3, padding="same").to(D)(torch.zeros(1, 3, 8, 8, device=D))
nn.ConvTranspose2d(3, 8, 3, 2).to(D)(torch.zeros(1, 3, 8, 8, device=D))
nn.EmbeddingBag(10, 4).to(D)(torch.tensor([1, 2, 3], device=D), torch.tensor([0, 2], device=D))
type(nn.Linear(2, 2).to(D).weight).__name__
type(nn.Linear(2, 2).weight)(torch.zeros(2, 2, device=D)).shape
isinstance(nn.Parameter(torch.zeros(2, device=D)), nn.Parameter)
isinstance(torch.zeros(2, device=D), torch.Tensor), type(torch.zeros(2, device=D)) is torch.Tensor, type(torch.zeros(2, device=D)).__name__
nn.Parameter(torch.zeros(2, device=D)).is_leaf
copy.deepcopy(nn.Linear(2, 2).to(D)).weight.device.type == D
[p.detach_() for p in copy.deepcopy(nn.Linear(2, 2).to(D)).parameters()][0].shape
copy.copy(x).shape
pickle.loads(pickle.dumps(torch.ones(3))).tolist()
pickle.loads(pickle.dumps(torch.zeros(3, device=D))).device.type == D
pickle.loads(pickle.dumps(nn.Linear(2, 2).to(D))).weight.shape
saved({"a": torch.zeros(3, device=D)})["a"].device.type == D
saved({"a": torch.zeros(3, device=D)}, map_location="cpu")["a"].device.type
saved({"a": torch.arange(3)}, map_location=D)["a"].device.type == D
saved({"a": torch.arange(3)})["a"].tolist()
saved(nn.Linear(2, 3).to(D).state_dict())["weight"].shape
saved(torch.optim.Adam(nn.Linear(2, 3).to(D).parameters()).state_dict())["param_groups"][0]["lr"]
saved(torch.zeros(3, device=D), map_location=lambda s, loc: s).shape
nn.Linear(2, 3).load_state_dict(nn.Linear(2, 3).to(D).state_dict())
nn.Linear(2, 3).to(D).load_state_dict(nn.Linear(2, 3).state_dict())
torch.optim.Adam(nn.Linear(2, 3).to(D).parameters()).state_dict()["state"]
copy.deepcopy(torch.optim.AdamW(nn.Linear(2, 3).to(D).parameters())).param_groups[0]["betas"]
stepped(torch.optim.SGD, lr=.1, momentum=.9)
stepped(torch.optim.Adam)
stepped(torch.optim.AdamW, fused=D == "cuda")
stepped(torch.optim.RMSprop)
stepped(torch.optim.Adagrad)
stepped(torch.optim.NAdam)
stepped(torch.optim.Adam, capturable=D == "cuda")
stepped(torch.optim.SGD, lr=torch.tensor(.1))
closed(torch.optim.LBFGS)
torch.jit.trace(nn.Linear(2, 2).to(D), torch.zeros(1, 2, device=D))(torch.zeros(3, 2, device=D))
torch.jit.script(nn.Linear(2, 2).to(D))(torch.zeros(3, 2, device=D))
scripted(torch.zeros(3, device=D))
torch.func.vmap(torch.sin)(x)
torch.func.grad(lambda y: y.sin().sum())(x)
torch.func.jacrev(lambda y: y * 2)(x[0])
torch.func.functional_call(nn.Linear(8, 2).to(D), {"weight": torch.zeros(2, 8, device=D)}, (x,))
torch.autograd.functional.jacobian(lambda y: y * 2, x[0])
torch.autograd.grad(x.clone().requires_grad_().pow(2).sum(), [], allow_unused=True) if False else 0
torch.autograd.gradcheck(lambda y: y * 2, x[0, :2].double().requires_grad_())
x.double().requires_grad_().pow(2).sum().backward()
torch.utils.checkpoint.checkpoint(nn.Linear(8, 4).to(D), x.clone().requires_grad_(), use_reentrant=False)
torch.autocast(D, dtype=torch.bfloat16).__enter__() and None
amp(lambda: nn.Linear(8, 4).to(D)(x))
amp(lambda: x @ x.T)
torch.amp.GradScaler(D, enabled=D == "cuda").scale(torch.ones(1, device=D)).shape
torch.get_default_device().type
torch.randn(3, generator=torch.Generator(D).manual_seed(0), device=D).shape
torch.Generator(D).manual_seed(3).initial_seed()
torch.randperm(5, device=D).shape
torch.randint(0, 5, (3,), device=D).dtype
torch.bernoulli(torch.full((3,), .5, device=D)).shape
torch.multinomial(torch.ones(5, device=D), 2).shape
torch.distributions.Normal(torch.zeros(3, device=D), torch.ones(3, device=D)).sample((2,)).shape
torch.distributions.Categorical(logits=torch.zeros(3, 4, device=D)).log_prob(torch.zeros(3, device=D)).shape
torch.distributions.Categorical(probs=torch.ones(3, 4, device=D) / 4).sample().dtype
torch.distributions.Bernoulli(torch.full((3,), .5, device=D)).entropy().shape
torch.distributions.Dirichlet(torch.ones(3, device=D)).rsample().shape
torch.distributions.Beta(torch.ones(3, device=D), torch.ones(3, device=D)).sample().shape
torch.distributions.MultivariateNormal(torch.zeros(2, device=D), torch.eye(2, device=D)).sample().shape
torch.distributions.kl_divergence(torch.distributions.Normal(torch.zeros(1, device=D), 1), torch.distributions.Normal(0, torch.ones(1, device=D))).shape
x.as_subclass(Tagged).__class__.__name__
(x.as_subclass(Tagged) + 1).__class__.__name__
Tagged(x).shape
TaggedParameter(torch.zeros(2, device=D)).__class__.__name__
np.asarray(torch.ones(3, device=D).cpu()).sum()
torch.ones(3, device=D).cpu().numpy().tolist()
x.cpu().numpy().shape
float(torch.ones((), device=D)), int(torch.tensor(3, device=D)), bool(torch.tensor(True, device=D))
torch.tensor(3, device=D).__index__()
[1, 2, 3, 4][torch.tensor(2, device=D)]
len(x), list(x.shape), x.size(0), x.ndim, x.numel(), x.nelement(), x.element_size()
x.stride(), x.T.stride(), x.t().is_contiguous(), x.contiguous().is_contiguous()
x.is_cuda == (D == "cuda"), x.get_device() in (0, -1)
str(x.dtype), x.layout, x.requires_grad, x.grad
repr(torch.zeros(2, device=D))[:7]
f"{torch.ones((), device=D):.2f}"
"%.1f" % torch.ones((), device=D)
x.storage_offset(), x[1:].storage_offset(), x.untyped_storage().nbytes(), x.nbytes
x.untyped_storage().device.type == D
x.data_ptr() == x.view(-1).data_ptr()
x.data_ptr() == x[0].data_ptr(), x.data_ptr() == x[1].data_ptr()
x._base is None, x[0]._base is x
x.view(8, 5).shape, x.reshape(-1).shape, x.unflatten(0, (5, 1)).shape, x.flatten().shape
x.view(-1, 3)
x.expand(2, 5, 8).stride()
x.as_strided((2, 2), (1, 2)).shape
x.unbind()[0].shape, len(x.split(2)), [c.shape for c in x.chunk(3, 1)]
x.topk(2).indices.shape, x.sort().values.shape, x.max(1).values.shape, x.argmax().shape
x.unique(return_inverse=True)[1].shape
torch.unique(torch.tensor([1, 1, 2], device=D)).tolist()
torch.nonzero(torch.tensor([0, 1, 1], device=D)).tolist()
torch.where(torch.tensor([True, False], device=D))[0].tolist()
torch.where(x > 0, x, 0.).shape
torch.masked_select(torch.arange(4, device=D), torch.tensor([True, False, True, False], device=D)).tolist()
(torch.arange(6, device=D) > 2).sum().item()
torch.arange(4, device=D)[torch.tensor([True, False, True, True], device=D)].tolist()
torch.bincount(torch.tensor([0, 1, 1], device=D)).tolist()
torch.repeat_interleave(torch.tensor([1, 2], device=D), torch.tensor([2, 1], device=D)).tolist()
torch.histc(x, 4).shape
torch.linalg.svd(x)[1].shape, torch.linalg.qr(x)[0].shape, torch.linalg.inv(torch.eye(3, device=D)).shape
torch.linalg.cholesky(torch.eye(3, device=D)).shape, torch.linalg.eigh(torch.eye(3, device=D))[0].shape
torch.linalg.lstsq(torch.eye(3, device=D), torch.ones(3, 1, device=D)).solution.shape
torch.fft.rfft(x).shape, torch.fft.fft2(x).dtype, torch.stft(torch.zeros(400, device=D), 64, return_complex=True, window=torch.hann_window(64, device=D)).shape
torch.view_as_real(torch.zeros(3, dtype=torch.complex64, device=D)).shape
torch.einsum("ij,kj->ik", x, x).shape
torch.cdist(x, x).shape, torch.pdist(x).shape
torch.equal(torch.ones(2, device=D), torch.ones(2, device=D)), torch.allclose(torch.ones(2, device=D), torch.ones(2, device=D))
torch.testing.assert_close(torch.ones(2, device=D), torch.ones(2, device=D))
torch.isnan(x).any().item()
x + torch.ones(())
x.add_(1).mul_(2).zero_()[0].tolist()
x.copy_(torch.ones(5, 8))[0, 0].item()
x.fill_(3)[0].tolist()[0]
torch.ones(3, device=D).index_add_(0, torch.tensor([0, 0], device=D), torch.ones(2, device=D)).tolist()
torch.zeros(3, device=D).scatter_(0, torch.tensor([1], device=D), 5.).tolist()
torch.zeros(3, device=D).scatter_add(0, torch.tensor([1, 1], device=D), torch.ones(2, device=D)).tolist()
x.index_select(1, torch.tensor([0, 3], device=D)).shape, x.gather(1, torch.zeros(5, 1, dtype=torch.long, device=D)).shape
x.pin_memory().is_pinned() if D == "cpu" and False else True
list(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(6, 2).to(D)), 3))[0][0].shape
list(torch.utils.data.DataLoader([1, 2, 3], 2, num_workers=1))[1].tolist()
[b.to(D).shape for b in torch.utils.data.DataLoader(torch.zeros(4, 2), 2, shuffle=True, pin_memory=False)]
torch.compile(lambda y: y * 2, backend="eager")(x).shape
hooked(nn.Linear(8, 2).to(D), x)
grad_hooked(x)
torch.nn.utils.clip_grad_norm_(with_grad().parameters(), 1.).shape
torch.nn.utils.clip_grad_value_(with_grad().parameters(), 1.)
nn.utils.parametrizations.weight_norm(nn.Linear(8, 2)).to(D)(x).shape
nn.utils.parametrizations.spectral_norm(nn.Linear(8, 2).to(D))(x).shape
nn.utils.parameters_to_vector(nn.Linear(8, 2).to(D).parameters()).shape
nn.utils.vector_to_parameters(torch.zeros(18, device=D), nn.Linear(8, 2).to(D).parameters())
torch.optim.swa_utils.AveragedModel(nn.Linear(8, 2).to(D)).module.weight.device.type == D
nn.DataParallel(nn.Linear(8, 2).to(D))(x).shape
sum(p.numel() for p in nn.Linear(8, 2).to(D).parameters())
sorted(nn.Linear(8, 2).to(D).state_dict())
nn.Linear(8, 2, device=D).weight.device.type == D
nn.Linear(8, 2, device="meta").to_empty(device=D).weight.shape
nn.Linear(8, 2).to(D).half().weight.dtype, nn.Linear(8, 2).to(D).bfloat16()(x.bfloat16()).dtype
nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Dropout(.5)).to(D).eval()(x).shape
nn.init.kaiming_normal_(torch.empty(3, 4, device=D)).shape, nn.init.orthogonal_(torch.empty(3, 4, device=D)).shape, nn.init.trunc_normal_(torch.empty(3, device=D)).shape
nn.Linear(8, 2).cpu()(torch.ones(1, 8)).shape
host_linear()
torch.ones(3).sum().item()
nn.Linear(2, 2).weight.detach().to(D).cpu().shape
torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(torch.ones(3))).tolist()
torch.from_dlpack(torch.ones(3, device=D)).shape
with_default_device()
with_default_dtype()
torch.promote_types(torch.float16, torch.int64), torch.result_type(x, 1)
torch.is_tensor(x), torch.is_floating_point(x), torch.is_storage(x.untyped_storage())
torch.broadcast_tensors(x, torch.zeros(8, device=D))[1].shape, torch.meshgrid(torch.arange(2, device=D), torch.arange(3, device=D), indexing="ij")[0].shape
torch.tril(torch.ones(3, 3, device=D)).tolist()
torch.cumsum(torch.ones(3, device=D), 0).tolist()
torch.linspace(0, 1, 3, device=D).tolist()
torch.logical_not(torch.tensor([True, False], device=D)).tolist()
torch.clamp(torch.arange(4, device=D), 1, 2).tolist()
(torch.arange(3, device=D) == 1).any().item(), (torch.arange(3, device=D) >= 0).all().item()
torch.tensor(float("nan"), device=D).isnan().item()
torch.finfo(x.dtype).max > 0
max(torch.tensor([1, 3, 2], device=D)).item()
sum(torch.tensor([1, 2], device=D)).item()
x in [x]
{x: 1}[x]
hash(x) == hash(x)
x is x.detach(), x.detach().requires_grad, x.data.shape
torch.utils.data.default_collate([torch.zeros(2, device=D), torch.zeros(2, device=D)]).shape
torch.cuda.amp.autocast(enabled=False).__class__.__name__
torch.profiler.record_function("a").__enter__().__class__.__name__
torch.set_grad_enabled(True).__class__.__name__
torch.inference_mode()(lambda: (x + 1).is_inference())()
torch.no_grad()(lambda: (x + 1).requires_grad)()
anomaly()
nn.Conv2d(3, 6, 3).to(D).to(memory_format=torch.channels_last)(torch.rand(2, 3, 8, 8, device=D).to(memory_format=torch.channels_last)).stride()
nn.Conv2d(4, 8, 3, groups=2).to(D)(torch.rand(2, 4, 8, 8, device=D)).stride()
nn.CTCLoss(zero_infinity=True)(torch.randn(10, 2, 6, device=D).log_softmax(-1), torch.randint(1, 6, (2, 4), device=D), torch.tensor([10, 9]), torch.tensor([4, 3])).shape
padded_again()
sorted(torch.compile(nn.Linear(5, 2).to(D)).state_dict())
torch.Generator(device=D).manual_seed(3).device.type == D
on_disk()
[type(torch.load(io.BytesIO(as_file({"x": x}).getvalue()), map_location=where)["x"]).__name__ for where in (D, "cpu", torch.device("cpu"), {"cuda:0": "cpu"}, None)]
torch.load(as_file({"x": x}), map_location=lambda storage, place: storage)["x"].device.type
refuses_globals()
torch.zeros(3).is_pinned(), torch.zeros(3, device=D).is_contiguous()
torch.nested.nested_tensor([torch.zeros(3, 4), torch.zeros(5, 4)], layout=torch.jagged, device=D).values().shape
encoder_with_mask()
x[:1].expand(4, 8).add_(1)
x.t().view(-1)
x.is_set_to(x), x.is_set_to(x.clone())
[v.shape for v in torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))]
torch.jit.script(nn.Sequential(nn.Linear(8, 2), nn.ReLU()).to(D))(x).shape
torch.func.stack_module_state([nn.Linear(2, 2).to(D) for _ in range(3)])[0]["weight"].shape
"grad_fn" in repr((x.requires_grad_() * 2).sum())
in_three_threads(lambda: x.add(1).t().sum(0).device.type == x.device.type)
type(caught(lambda: x + torch.zeros(5, 8))).__name__ if D == "cuda" else "RuntimeError"
type(caught(lambda: nn.Linear(8, 2).to(D)(x).cpu().numpy())).__name__
(lambda w: torch.istft(torch.stft(torch.randn(2, 400, device=D), 64, hop_length=16, window=w, return_complex=True), 64, hop_length=16, window=w).shape)(torch.hann_window(64, device=D))
type(torch.__config__.show()).__name__
torch.complex(torch.ones(2, device=D).int(), torch.ones(2, device=D).int())
F.embedding(torch.tensor([0], device=D), torch.ones(3, device=D))
'''
class Tagged(torch.Tensor): pass
class TaggedParameter(nn.Parameter): pass
def saved(obj, **k):
    b = io.BytesIO(); torch.save(obj, b); b.seek(0); return torch.load(b, weights_only=False, **k)
def stepped(kind, **k):
    m = nn.Linear(4, 2).to(D); o = kind(m.parameters(), **k)
    for _ in range(3): o.zero_grad(); m(torch.ones(3, 4, device=D)).sum().backward(); o.step()
    return m.weight.shape, len(o.state)
def closed(kind):
    m = nn.Linear(4, 2).to(D); o = kind(m.parameters())
    def c(): o.zero_grad(); l = m(torch.ones(3, 4, device=D)).sum(); l.backward(); return l
    return o.step(c).shape
@torch.jit.script
def scripted(y: torch.Tensor):
    return y + torch.tensor([1., 2., 3.], dtype=y.dtype, device=y.device)
def amp(f):
    with torch.autocast(D, dtype=torch.bfloat16): return f()
def hooked(m, x):
    seen = []; m.register_forward_hook(lambda m, i, o: seen.append(o.shape)); m.register_full_backward_hook(lambda m, a, b: seen.append(b[0].shape))
    m(x.clone().requires_grad_()).sum().backward(); return seen
def grad_hooked(x):
    seen = []; y = x.clone().requires_grad_(); y.register_hook(lambda g: seen.append(g.shape)); y.sin().sum().backward(); return seen, y.grad.shape
def padded_again():
    p = nn.utils.rnn.pack_padded_sequence(torch.rand(2, 6, 8).to(D), torch.tensor([4, 6]), batch_first=True, enforce_sorted=False)
    y, n = nn.utils.rnn.pad_packed_sequence(nn.LSTM(8, 3, batch_first=True).to(D)(p)[0], batch_first=True); return y.shape, n.tolist()
def as_file(obj):
    b = io.BytesIO(); torch.save(obj, b); b.seek(0); return b
def on_disk():
    with tempfile.TemporaryDirectory() as f:
        torch.save(nn.Linear(3, 2).to(D).state_dict(), f + "/a.tmp"); os.replace(f + "/a.tmp", f + "/a.pt")
        return os.listdir(f), nn.Linear(3, 2).to(D).load_state_dict(torch.load(f + "/a.pt", weights_only=True)).__class__.__name__
class Options:
    lr = 1
def refuses_globals():
    try: torch.load(as_file({"o": Options(), "x": torch.zeros(2, device=D)}), weights_only=True)
    except Exception as e: return type(e).__name__
def encoder_with_mask():
    e = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1).to(D).eval()
    with torch.no_grad(): return e(torch.randn(2, 5, 8).to(D), src_key_padding_mask=torch.tensor([[False, True, False, False, False]] * 2, device=D)).shape
def with_grad():
    m = nn.Linear(8, 2).to(D); m(torch.ones(1, 8, device=D)).sum().backward(); return m
def host_linear():
    m = nn.Linear(2, 1, bias=False); nn.init.constant_(m.weight, 3.); m(torch.ones(1, 2)).sum().backward(); return m(torch.ones(1, 2)).item(), m.weight.grad.tolist()
def with_default_device():
    torch.set_default_device(D)
    try: return torch.zeros(2).device.type == D, nn.Linear(2, 2).weight.device.type == D, torch.tensor([1]).device.type == D
    finally: torch.set_default_device(None)
def with_default_dtype():
    torch.set_default_dtype(torch.float64)
    try: return torch.zeros(2, device=D).dtype, torch.tensor([1.], device=D).dtype, nn.Linear(2, 2).to(D).weight.dtype
    finally: torch.set_default_dtype(torch.float32)
def anomaly():
    with torch.autograd.detect_anomaly(): x = torch.ones(2, device=D, requires_grad=True); x.sin().sum().backward(); return x.grad.shape
def caught(f):
    try: f()
    except Exception as e: return e
def in_three_threads(f):
    import threading
    done = []; ts = [threading.Thread(target=lambda: [done.append(f()) for _ in range(200)]) for _ in range(3)]
    [t.start() for t in ts]; [t.join() for t in ts]; return len(done), set(done)
def said(v, top=True):
    if isinstance(v, torch.Tensor): return f"T{tuple(v.shape)}{v.dtype}{v.layout}{v.stride() if v.layout is torch.strided else ''}{v.requires_grad}{'D' if v.device.type == D else v.device}{type(v).__name__}"
    if isinstance(v, (list, tuple)): return type(v).__name__ + "[" + ", ".join(said(e) for e in v) + "]"
    return repr(v).replace("'cpu'", "'D'").replace("'cuda'", "'D'").replace("cuda:0", "D")
for n, line in enumerate(filter(None, LINES.splitlines())):
    torch.manual_seed(0)
    x = torch.randn(5, 8).to(D)
    try: out = said(eval(line))
    except BaseException as e: out = f"!{type(e).__name__}: {str(e)[:150]!r}"
    print(f"{n}\t{line}\t{out}", flush=True)
